"""The command line, run as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import forked
import pytest
from PIL import Image
from tensorboard_view import View

from kbatch.cli import search_options
from kbatch.cli.live import number_of_trainings
from kbatch.cli.search_options import CaseOptions
from kbatch.errors import SearchError
from kbatch.results.loading import load_records

SMALL = [
    "--model",
    "cnn",
    "--image-size",
    "16",
    "--trials",
    "2",
    "--seconds-per-trial",
    "0.8",
    "--confirm",
    "1",
    "--confirm-top",
    "1",
    "--policies",
    "float32",
]


def run(*arguments, timeout=240):
    command = [sys.executable, "-m", "kbatch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Options of a small search on a small folder of two classes, where a file is unreadable."""
    folder = tmp_path_factory.mktemp("photographs") / "fruit"
    for label, shade in (("[apple]", 60), ("banana [red]", 200)):
        (folder / label).mkdir(parents=True)
        for number in range(105):
            Image.new("RGB", (8, 8), (shade, number, 0)).save(folder / label / f"{number}.png")
        os.mkfifo(folder / label / "200.png")
    return [*SMALL, "--data", folder]


@pytest.fixture(scope="module")
def done(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "out [bold]"
    return folder, run("cats-vs-dogs", *small, "--tensorboard", "--out", folder)


def test_the_main_job_writes_everything_and_says_what_it_buys(done):
    folder, result = done
    assert result.returncode == 0, result.stderr
    assert {
        "trials.csv",
        "report.html",
        "report.md",
        "accuracy_over_seconds.png",
        "batch_size.png",
        "confirmations.csv",
    } <= {path.name for path in folder.iterdir()}
    assert "told better once the baseline has ended" in result.stdout
    assert re.search(r"training seconds took .* by the wall clock: about .* left", result.stdout)
    assert "over 1 fresh seed each" in result.stdout
    assert "Too few seeds to claim anything" in result.stdout
    assert "standard error" not in result.stdout
    assert [record.purpose for record in load_records(folder)] == [
        "baseline",
        "search",
        "search",
        "confirmation",
        "confirmation",
    ]
    assert result.stderr == ""


def test_tensorboard_shows_the_main_job(done):
    folder, _ = done
    (best,) = {r.trial for r in load_records(folder) if r.purpose == "confirmation"} - {-1}
    rows = View(folder / "tensorboard").rows()
    assert rows.keys() == {"baseline", "0", "1", "baseline, confirmed", f"{best}, confirmed"}
    assert all(metrics["final/peak_bytes"] > 0 for _, metrics, _ in rows.values())
    command = json.loads((folder / "run.json").read_text())["command"]
    assert "--tensorboard --" in command or command.endswith("--tensorboard")


def test_two_own_classes_of_100_photographs_are_enough(done):
    _, result = done
    assert (
        "210 photographs of fruit, 16 px: 126 to train, 42 to validate, 42 to test" in result.stdout
    )
    assert "Batch sizes above the 126 examples" in result.stdout
    assert (
        "2 files could not be read and were skipped: [apple]/200.png, banana [red]/200.png"
        in result.stdout
    )


def test_the_same_command_again_trains_nothing(done, small):
    folder, _ = done
    before = (folder / "search" / "kbatch" / "records.jsonl").read_bytes()
    result = forked.command("cats-vs-dogs", *small, "--out", folder)
    assert result.returncode == 0
    assert "5 of them kept from an earlier run: about 0 s" in result.stdout
    assert (folder / "search" / "kbatch" / "records.jsonl").read_bytes() == before


def test_the_report_is_made_again_without_tensorflow(done):
    folder, _ = done
    written = (folder / "report.md").read_text()
    (folder / "report.md").unlink()
    code = (
        f"import sys; sys.modules['tensorflow'] = None\nfrom kbatch.cli.app "
        f"import app\napp(['report', {str(folder)!r}])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )
    assert (folder / "report.md").read_text() == written


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--batch-sizes", "16,32"], "space.batch_size was"),
        (["--seconds-per-trial", "0.9"], "seconds_per_trial was 0.8"),
        (["--image-size", "24"], "image_size was 16"),
        (["--model", "small-resnet"], "model was 'cnn'"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(done, small, change, text):
    folder, _ = done
    before = (folder / "search" / "kbatch" / "records.jsonl").read_bytes()
    result = forked.command("cats-vs-dogs", *small, *change, "--out", folder)
    assert (result.returncode, text in result.stderr) == (2, True), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert (folder / "search" / "kbatch" / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize("broken", ["oracle.json", "trial_0*/trial.json", "tuner0.json"])
def test_broken_files_of_keras_tuner_are_set_aside(done, small, broken):
    folder, _ = done
    file = next((folder / "search").glob(broken))
    file.write_text(file.read_text()[: len(file.read_text()) // 2])
    before = (folder / "search" / "kbatch" / "records.jsonl").read_bytes()
    result = forked.command("cats-vs-dogs", *small, "--out", folder)
    assert result.returncode == 0, result.stderr
    assert "set-aside" in result.stdout
    assert (folder / "search" / "kbatch" / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "/nowhere"], "exists"),
        (["--data", "EMPTY"], "2 folders of images"),
        (["--data", "THREE"], "100 readable images of each class. Received: 3 of Cat, 3 of Dog"),
        (["--trials", "0"], "--trials must be at least 1"),
        (["--trials", "many"], "Invalid value"),
        (["--batch-sizes", "0,abc"], "--batch-sizes must be whole numbers"),
        (["--batch-sizes", "4096"], "at most the number of training examples, 1200"),
        (["--out", "/proc/none"], "--out must be a folder that can be written"),
        (["--seconds-per-trial", "0"], "at least 0.05"),
        (["--epochs", "3", "--seconds-per-trial", "3"], "One of"),
        (["--optimizers", "lion"], "--optimizers must be names out of sgd, adam"),
        (["--sgd-rates", "0.1:0.01"], "the lower first"),
        (
            ["--tuner", "hyperband"],
            "'hyperband' is not one of 'kbatch', 'random', 'bayesian', 'grid'",
        ),
        (["--micro-batch-size", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, text, tmp_path):
    (tmp_path / "EMPTY").mkdir()
    for label in ("Cat", "Dog"):
        (tmp_path / "THREE" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "THREE" / label / f"{number}.jpg")
    arguments = [str(tmp_path / a) if a in ("EMPTY", "THREE") else a for a in arguments]
    result = forked.command(
        "cats-vs-dogs", "--image-size", "16", "--out", tmp_path / "out", *arguments
    )
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_without_records_has_no_report(tmp_path):
    result = forked.command("report", tmp_path)
    assert (result.returncode, "must hold the records" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "ask", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_after_ctrl_c_and_sigterm_the_same_command_goes_on(ask, small, tmp_path):
    arguments = [
        sys.executable,
        "-m",
        "kbatch",
        "cats-vs-dogs",
        *small,
        "--trials",
        "1",
        "--seconds-per-trial",
        "0.5",
        "--confirm",
        "0",
        "--out",
        tmp_path,
    ]
    process = subprocess.Popen(
        list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    records = tmp_path / "search" / "kbatch" / "records.jsonl"
    while not records.with_name("lock").exists():  # from then on it imports TensorFlow
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    second = forked.command("cats-vs-dogs", *small, "--out", tmp_path)
    assert (second.returncode, f"process {process.pid} on " in second.stderr) == (2, True), (
        second.stderr
    )
    while not (records.exists() and records.read_text().count('"ended", "key"') >= 1):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(ask)
    process.send_signal(ask)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + ask
    assert f"Trials that had finished are kept: `kbatch report {tmp_path}` shows them" in errors
    assert "Traceback" not in errors
    kept = load_records(tmp_path)
    result = forked.command(*arguments[3:])
    assert result.returncode == 0, result.stderr
    assert load_records(tmp_path)[: len(kept)] == kept
    records = load_records(tmp_path)
    assert [record.purpose for record in records] == ["baseline", "search"]
    # a rung may stop a trial that is far behind
    assert {record.outcome.ended for record in records} <= {"horizon", "stopped"}


def test_help_and_version():
    assert "cats-vs-dogs" in run("--help").stdout
    assert run("--version").stdout.startswith("kbatch 0.")
    assert "--batch-sizes" in run("cats-vs-dogs", "--help").stdout


def options(axes=None, **changes):
    fields = dict.fromkeys(CaseOptions.__dataclass_fields__)
    said = {
        "learning_rate_sgd": "0.001:0.1",
        "learning_rate_adam": "1e-4:1e-2",
        "batch_size": "32,64",
        "augmentation": "none,flip",
    }
    return CaseOptions(**{**fields, "tuner": "grid", "axes": {**said, **(axes or {})}, **changes})


def test_a_grid_takes_three_rates_an_optimizer():
    space = options({"policy": "float32"}).space()
    assert space.learning_rate["sgd"] == pytest.approx([0.001, 0.01, 0.1])
    assert space.size() == 6 * 2 * 2


def test_default_policies_are_of_the_machine_or_the_project(monkeypatch):
    monkeypatch.setattr(search_options, "may_use_card", lambda: False)
    assert options().space().policy == ("float32",)
    begun = options().as_begun({"space": {"policy": ["float32", "mixed_float16"]}})
    assert begun.space().policy == ("float32", "mixed_float16")
    assert (
        options({"policy": "float32"})
        .as_begun({"space": {"policy": ["mixed_float16"]}})
        .axes["policy"]
        == "float32"
    )
    monkeypatch.setattr(search_options, "may_use_card", lambda: True)
    assert options().space().policy == ("float32", "mixed_float16")


@pytest.mark.parametrize(
    ("text", "seeds", "trainings"),
    [
        ("0", (), 1 + 6),
        ("3", (3,), 1 + 6 + 3 * 6),
        ("3,5,8", (3, 5, 8), 1 + 6 + 3 * 6 + 2 * 4 + 3 * 3),
    ],
)
def test_confirm_is_a_number_of_seeds_or_a_race(text, seeds, trainings):
    own = options(confirm=text, trials=6, confirm_top=5)
    assert own.confirm_seeds() == seeds
    assert number_of_trainings(own, own.space()) == trainings


@pytest.mark.parametrize("text", ["", "-1", "3,", "5,3", "3,3", "0,3", "1001", "3.5", "1_0", "٣"])
def test_other_seeds_to_confirm_are_refused(text):
    with pytest.raises(SearchError, match="--confirm must be"):
        options(confirm=text).confirm_seeds()
