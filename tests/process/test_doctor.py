"""The doctor: what it says of a broken, absent or blind TensorFlow, and of this machine."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import forked
import numpy as np
import pytest
from typer.testing import CliRunner

from kbatch.checks import catalogue
from kbatch.checks.check import Check, Found
from kbatch.checks.check import Finding as CheckFinding
from kbatch.cli import doctor, gpu_check
from kbatch.cli.app import app
from kbatch.cli.doctor import DoctorLine
from kbatch.cli.gpu_check import GpuRow
from kbatch.cli.quick_checks import QUICK
from kbatch.errors import KbatchError

HEALTHY = {
    "tensorflow": "2.21.0",
    "cuda": True,
    "build": {"cuda_version": "12.5.1", "cudnn_version": "9"},
    "gpus": [],
    "cpu": "AMD EPYC, 2 cores",
    "tells_bytes": False,
    "onednn": True,
    "keras": "3.15.1",
    "backend": "tensorflow",
}
CARD = "GPU 0: NVIDIA H200 (UUID: GPU-8932f937)"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [name for name in doctor.os.environ if doctor.VARIABLES.fullmatch(name)]:
        monkeypatch.delenv(name)


@pytest.fixture
def machine(monkeypatch):
    """Sets what the process that asks TensorFlow gives, and what `nvidia-smi -L` says."""

    def machine(stdout="", code=0, raises=None, cards=""):
        def run(command, **rest):
            assert command[:2] == [sys.executable, "-c"]
            if raises:
                raise raises
            return subprocess.CompletedProcess(command, code, stdout, "greetings on stderr")

        monkeypatch.setattr(
            doctor, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run})
        )
        monkeypatch.setattr(doctor.nvidia, "card_names", lambda: tuple(filter(None, [cards])))
        monkeypatch.setattr(doctor.nvidia, "has_card", lambda: bool(cards))
        return {finding.topic: finding for finding in doctor.findings()}

    return machine


def said(**changes):
    return "a greeting\n" + json.dumps({**HEALTHY, **changes}) + "\n"


def problems(found):
    return [finding for finding in found.values() if finding.problem]


def test_a_cpu_without_a_memory_limit_is_no_problem(machine):
    found = machine(said())
    assert problems(found) == []
    assert found["tensorflow"].value == "2.21.0, built with CUDA (cuda 12.5.1, cudnn 9)"
    assert found["keras"].value == "3.15.1, backend tensorflow"
    assert found["cpu"].value == "AMD EPYC, 2 cores"
    assert found["memory limit"].value.startswith("none")
    assert found["tells its bytes"].value.startswith("no (")
    assert found["onednn"].value == "on"


def test_a_card_that_tensorflow_sees(machine):
    found = machine(said(gpus=["NVIDIA H200"], limit=143_156_000_000, tells_bytes=True), cards=CARD)
    assert problems(found) == []
    assert (found["gpu"].value, found["memory limit"].value, found["nvidia cards"].value) == (
        "NVIDIA H200",
        "143,156 MB",
        CARD,
    )


@pytest.mark.parametrize(
    ("process", "text"),
    [
        (
            {
                "stdout": json.dumps(
                    {
                        "error": "ModuleNotFoundError: No module named 'tensorflow'",
                        "keras_error": "x",
                    }
                )
            },
            "No module named 'tensorflow'",
        ),
        (
            {"stdout": json.dumps({"error": "ImportError: libcudart.so.12:\n cannot open\n"})},
            "libcudart.so.12:; cannot open",
        ),
        ({"stdout": "half a gree", "code": -11}, "died of SIGSEGV"),
        ({"stdout": "", "code": -4}, "died of SIGILL"),
        ({"stdout": "7", "code": 3}, "ended with code 3"),
        ({"raises": subprocess.TimeoutExpired("python", 120)}, "no answer within 120 seconds"),
        ({"raises": OSError("cannot start")}, "cannot start"),
    ],
)
def test_a_broken_tensorflow_is_one_problem_and_no_crash(machine, process, text):
    found = machine(**process, cards=CARD)
    (problem,) = problems(found)
    assert problem.topic == "tensorflow"
    assert text in problem.problem
    assert ("AVX" in problem.do) == ("SIGILL" in text)
    assert (
        found["gpu"].value == found["tells its bytes"].value == found["onednn"].value == "unknown"
    )
    assert list(doctor.lines(found.values()))


@pytest.mark.parametrize(
    ("changes", "visible", "problem", "do"),
    [
        ({}, None, "does not see the NVIDIA card", "tensorflow[and-cuda]==2.21.0"),
        ({"cuda": False}, None, "built without CUDA", "tensorflow[and-cuda]==2.21.0"),
        ({}, "-1", "CUDA_VISIBLE_DEVICES='-1' hides", "Unset it"),
        ({}, "", "CUDA_VISIBLE_DEVICES='' hides", "Unset it"),
    ],
)
def test_a_card_that_tensorflow_does_not_see_has_a_remedy(
    machine, monkeypatch, changes, visible, problem, do
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (found,) = problems(machine(said(**changes), cards=CARD))
    assert (found.topic, found.value) == ("nvidia cards", CARD)
    assert problem in found.problem
    assert do in found.do


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "jax"},
        {"backend": None, "keras_error": "ModuleNotFoundError: No module named 'jax'"},
    ],
)
def test_another_backend_has_a_remedy(machine, monkeypatch, changes):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    (problem,) = problems(machine(said(**changes)))
    assert "Keras is set to jax" in problem.problem
    assert problem.do == "Set KERAS_BACKEND=tensorflow"


def test_a_keras_that_cannot_be_imported_is_a_problem(machine):
    told = {name: value for name, value in HEALTHY.items() if name not in ("keras", "backend")}
    (problem,) = problems(machine(json.dumps({**told, "keras_error": "ImportError: broken"})))
    assert problem.problem == "Keras cannot be imported: ImportError: broken"


def test_a_missing_tensorboard_has_a_remedy(machine, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = problems(machine(said()))
    assert (problem.value, problem.do) == ("not installed", "Run `pip install tensorboard`")


def test_settings_are_told_and_secrets_are_not(machine, monkeypatch):
    for name in (
        "TF_ENABLE_ONEDNN_OPTS",
        "XLA_FLAGS",
        "TF_VAR_password",
        "TF_TOKEN_app_terraform_io",
        "HOME",
    ):
        monkeypatch.setenv(name, "some\nthing")
    found = machine(said())
    assert found["TF_ENABLE_ONEDNN_OPTS"].value == found["XLA_FLAGS"].value == "some; thing"
    assert not {"TF_VAR_password", "TF_TOKEN_app_terraform_io", "HOME"} & found.keys()


@pytest.mark.parametrize(
    ("allocator", "limit"), [("true", "500 MB"), ("1", "500 MB"), ("false", "none"), (None, "none")]
)
def test_a_limit_holds_only_with_the_allocator_that_keeps_it(
    machine, monkeypatch, allocator, limit
):
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "500")
    if allocator is not None:
        monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", allocator)
    assert machine(said())["memory limit"].value.split(" (")[0] == limit


def test_the_lines_are_aligned_and_the_remedies_come_last():
    found = [
        DoctorLine("a", "1"),
        DoctorLine("long topic", "2", "It is wrong", "Mend it"),
        DoctorLine("b", "3"),
    ]
    assert list(doctor.lines(found)) == [
        "a           1",
        "long topic  2",
        "b           3",
        "! It is wrong. Mend it.",
    ]


def test_the_command_is_right_about_this_machine():
    import keras
    import tensorflow as tf

    result = subprocess.run(
        [sys.executable, "-m", "kbatch", "doctor"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    told = dict(
        line.split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith("!")
    )
    assert told["tensorflow"].startswith(tf.__version__)
    assert told["keras"] == f"{keras.__version__}, backend tensorflow"
    assert told["cpu"].endswith(("cores", "core"))
    assert told["onednn"] in ("on", "off")
    assert result.returncode == ("! " in result.stdout)
    assert result.stderr == ""


def test_help_says_what_it_is_for():
    result = subprocess.run(
        [sys.executable, "-m", "kbatch", "doctor", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "bug report" in result.stdout


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1), (None, 0)])
def test_the_quick_checks_of_a_gpu_decide_the_exit_code(monkeypatch, capsys, passed, code):
    def run(checks, report):
        assert len(checks) == len(QUICK)
        report.add(GpuRow("L1", passed, "a criterion", {}, 1.0, ""))

    monkeypatch.setattr(doctor, "findings", lambda: [DoctorLine("kbatch", "1")])
    monkeypatch.setattr(gpu_check, "gpus", lambda: ["A CARD"])
    monkeypatch.setattr(gpu_check, "run", run)
    assert CliRunner().invoke(app, ["doctor", "--gpu"]).exit_code == code


def test_without_a_gpu_there_are_no_quick_checks(monkeypatch):
    def gpus():
        raise KbatchError("TensorFlow must see a GPU", "none", "Install one")

    monkeypatch.setattr(doctor, "findings", lambda: [DoctorLine("kbatch", "1")])
    monkeypatch.setattr(gpu_check, "gpus", gpus)
    said = CliRunner().invoke(app, ["doctor", "--gpu"])
    assert said.exit_code == 1
    assert "! TensorFlow must see a GPU. Received: none." in said.stdout


MODELS = """
import keras


def plain():
    model = keras.Sequential([keras.Input((4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def stateful():
    inputs = keras.Input((4, 1), batch_size=8)
    hidden = keras.layers.LSTM(2, stateful=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", metrics=["mae"])
    return model
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with a module of models, and examples."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "doctored_models.py").write_text(MODELS)
    x = np.random.default_rng(0).normal(size=(400, 4, 1)).astype("float32")
    np.savez(folder / "rows.npz", x=x, y=x.sum((1, 2)))
    return folder


@pytest.mark.parametrize(
    ("build", "code", "said"),
    [
        ("plain", 0, "A search would begin."),
        ("stateful", 1, "A search would refuse: state."),
    ],
)
def test_all_checks_of_an_own_model_are_a_table(own, monkeypatch, build, code, said):
    monkeypatch.chdir(own)
    told = forked.command("doctor", f"doctored_models:{build}", "--data", "rows.npz")
    assert (told.returncode, told.stderr) == (code, "")
    assert said in told.stdout
    rows = [line for line in told.stdout.splitlines() if line.startswith("│")]
    first = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows]
    verdicts = {cells[0]: cells[2] for cells in first if cells[0]}
    assert set(verdicts) == {check.name for check in catalogue.CHECKS}
    assert verdicts["state"] == ("holds" if code == 0 else "refused")


def test_found_tells_its_verdict_and_its_sentence():
    check = Check("name", "assumes", "otherwise", lambda subject: None)
    refusal = KbatchError("It must hold", "nothing", "Mend it")
    found = {
        "holds": (Found(check, CheckFinding(True)), ""),
        "does not hold": (Found(check, CheckFinding(False, "a sentence")), "a sentence"),
        "does not concern": (Found(check), ""),
        "refused": (Found(check, None, refusal), str(refusal)),
    }
    assert {name: (name, each.sentence) for name, (each, _) in found.items()} == {
        each.verdict: (name, sentence) for name, (each, sentence) in found.items()
    }


@pytest.mark.parametrize("alone", [("mymodel:build",), ("--data", "rows.npz")])
def test_a_model_is_checked_with_its_data(alone):
    said = CliRunner().invoke(app, ["doctor", *alone])
    assert said.exit_code == 2
    assert "A model must be checked with its data" in said.stderr
