"""`kbatch max-batch`: one sentence for an answer or an error, and Ctrl-C leaves no process."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbatch.cli import max_batch as max_batch_command
from kbatch.cli.app import app
from kbatch.cli.max_batch import sentence
from kbatch.memory._max_batch import MaxBatch, Probe, Row, Table
from kbatch.recipe import Recipe
from kbatch.space import Combination

HERE = Path(__file__).parents[1] / "support"
BASE = [
    "memory_models:uncompiled",
    "--shape",
    "12",
    "--memory-limit",
    "100MB",
    "--loss",
    "mse",
    "--ceiling",
    "8",
]


def command(tmp_path, *arguments):
    environment = {
        **os.environ,
        "KBATCH_CACHE": str(tmp_path / "cache"),
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "COLUMNS": "200",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "kbatch", "max-batch", *arguments],
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(tmp_path, *arguments):
    process = command(tmp_path, *arguments)
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


@pytest.fixture
def here(own_cache, forked_workers, monkeypatch):
    """Gives exit code, standard output and standard error of a command in this process."""
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("COLUMNS", "200")

    def answered(*arguments):
        result = CliRunner().invoke(app, ["max-batch", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return answered


def test_the_answer_is_a_sentence_and_is_cached(here, tmp_path):
    code, out, error = said(tmp_path, *BASE)
    assert (code, error) == (0, "")
    assert "  batch 8      passed" in out
    assert out.splitlines()[-1].startswith("batch 8 uses ")
    assert "8 is the ceiling; confirmed with " in out.splitlines()[-1]
    code, again, _ = here(*BASE)
    assert (code, again.splitlines()) == (0, out.splitlines()[-1:])


def test_a_function_without_arguments_will_do(here):
    code, out, error = here("memory_models:without_hp", *BASE[1:])
    assert (code, error) == (0, "")
    assert out.splitlines()[-1].startswith("batch 8 uses ")


def test_without_a_shape_the_models_own_input_is_taken(here):
    code, out, error = here(BASE[0], *BASE[3:])
    assert (code, error) == (0, "")
    assert out.splitlines()[-1].startswith("batch 8 uses ")


def test_several_make_a_table(here):
    code, out, error = here(*BASE, "--optimizer", "sgd,adam")
    assert (code, error) == (0, "")
    assert "largest batch" in out
    assert [line.split()[:5] for line in out.splitlines() if line.startswith("float32")] == [
        ["float32", "sgd", "no", "none", "8"],
        ["float32", "adam", "no", "none", "8"],
    ]


NONSENSE = [
    (["memory_models"], "module:function"),
    (["no_such_module:build"], "must be importable"),
    (
        ["memory_models:no_such_function"],
        "must be a function that returns a model. Received: nothing",
    ),
    (["memory_models:WIDTH"], "must be a function that returns a model. Received: int"),
    (["memory_models:uncompiled", "--memory-limit", "lots"], "`memory_limit` must be bytes"),
    (["memory_models:interrupts"], "its process died with exit code 130: KeyboardInterrupt"),
    (["memory_models:uncompiled", "--ceiling", "0"], "`ceiling` must be a whole number"),
    (["memory_models:uncompiled", "--shape", "a,b"], "--shape must be whole numbers"),
    (["memory_models:uncompiled", "--shape", "13"], "shape of the model's input"),
    (
        ["memory_models:uncompiled", "--no-shape", "--dtype", "float32"],
        "--dtype must come with --shape",
    ),
    (
        ["memory_models:shapeless", "--no-shape"],
        "A model without a keras.Input must be given the shape of one example",
    ),
    (["memory_models:open_sizes", "--no-shape"], "leaves sizes open must be given the shape"),
    (["memory_models:uncompiled", "--dtype", "float33"], "--dtype must be a NumPy type"),
    (["memory_models:uncompiled", "--optimizer", "lion"], "`optimizer` must be"),
    (["memory_models:uncompiled", "--policy", "int4"], "--policy must be names out of"),
    (["memory_models:uncompiled", "--jit", "maybe"], "--jit must be one of off, on, both"),
    (["memory_models:uncompiled", "--accumulation", "0"], "--accumulation must be at least 1"),
    (
        ["memory_models:uncompiled", "--table", "--sizes", "powers_of_two"],
        "--table must come without",
    ),
]


@pytest.mark.parametrize(("arguments", "says"), NONSENSE, ids=[row[-1] for row in NONSENSE])
def test_nonsense_is_one_sentence_and_exit_code_2(here, arguments, says):
    arguments = [
        *arguments,
        *([] if {"--shape", "--no-shape"} & {*arguments} else ["--shape", "12"]),
    ]
    given = [argument for argument in [*arguments, "--loss", "mse"] if argument != "--no-shape"]
    given += [] if "--memory-limit" in arguments else ["--memory-limit", "100MB"]
    code, out, error = here(*given)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_axes_of_memory_are_options_with_a_plain_recipes_values():
    options = max_batch_command.AXIS_OPTIONS.by_axis
    names = [option.name for option in options.values()]
    of_memory = ["policy", "optimizer", "jit", "recompute", "label-smoothing"]
    assert names == [*of_memory, "training", "ema", "normalizations"]
    texts = {axis: option.default for axis, option in options.items()}
    values = max_batch_command.MaxBatchOptions(build="a:b", axes=texts).axis_values()
    assert {len(each) for each in values.values()} == {1}
    plain = Combination(**{axis: each[0] for axis, each in values.items()})
    assert plain == Combination.of(Recipe())


def test_a_table_shows_later_axes_only_where_a_row_has_them():
    def table(*smoothings):
        rows = [
            Row(Combination("float32", "sgd", True, label_smoothing=each), 8, 4, 10**8, None, 5)
            for each in smoothings
        ]
        return str(Table(tuple(rows), 10**9, "none", 3, 0, 2.0)).splitlines()

    heading, row, sentence = table(0.0)
    assert "label_smoothing" not in heading
    assert row.split() == ["float32", "sgd", "yes", "none", "8", "4", "100"]
    assert sentence == "limit 1,000 MB; 3 batch sizes trained, 2 s"
    heading, *rows, _ = table(0.0, 0.1)
    assert heading.split()[4] == "label_smoothing"
    assert [row.split()[4] for row in rows] == ["0.0", "0.1"]


def test_a_process_that_ends_is_one_sentence_in_a_shell(tmp_path):
    code, out, error = said(tmp_path, "memory_models:exits", *BASE[1:])
    assert (code, out) == (2, "")
    assert "its process died with exit code 3: sys.exit(3)" in error
    assert len(error.splitlines()) == 1


def test_ctrl_c_ends_everything_at_once(tmp_path):
    process = command(tmp_path, "memory_models:hangs", "--shape", "12", "--memory-limit", "100MB")
    time.sleep(5)
    children = {
        pid.name for pid in Path("/proc").glob("[0-9]*") if _parent(pid) == str(process.pid)
    }
    assert children
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (
        error.strip()
        == "Stopped. Sizes that were tried are not kept: the same command tries them again."
    )
    for _ in range(50):
        if not any(_parent(Path("/proc") / pid) is not None for pid in children):
            return
        time.sleep(0.1)
    raise AssertionError("a worker is left")


def _parent(folder):
    try:
        state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else parent


def found_with(probes, **fields):
    steps = {
        "confirmations": probes[-1:],
        "confirmed_steps": 10,
        "predicted": 61,
        "ceiling": None,
        "recipe": Recipe(),
        "seconds": 9.0,
    }
    return MaxBatch(
        **{
            "batch_size": 60,
            "peak_bytes": 6_100_000_000,
            "limit_bytes": 8_000_000_000,
            "first_failing": 72,
            "probes": probes,
            **steps,
            **fields,
        }
    )


def test_the_sentence_says_from_where_on_speed_hardly_rises():
    probes = tuple(
        Probe(size, "passed", size * 10**8, 1.0, (9.0, 0.01 + 0.001 * size, 0.01 + 0.001 * size))
        for size in (10, 60)
    )
    found = found_with(probes)
    assert str(found) == "batch 60 uses 6.1 of 8.0 GB; 72 is too large; confirmed with 10 steps"
    assert sentence(found) == f"{found}; 90% of the best speed is reached at 34"


def test_the_sentence_has_no_speed_of_unmeasured_sizes():
    probes = tuple(
        Probe(size, "passed", size * 10**6, 1.0, (9.0, 0.001 * size, 0.001 * size))
        for size in (105, 151)
    )
    assert sentence(found_with(probes)).endswith(
        "; 90% of the best speed is reached at 105 or below"
    )


def test_the_sentence_repeats_the_limit_and_says_why_it_stopped():
    probes = (Probe(8192, "passed", 10**6, 1.0, (0.1, 0.1)),)
    found = found_with(
        probes,
        batch_size=8192,
        limit_bytes=10**7,
        peak_bytes=10**6,
        first_failing=None,
        no_faster_from=8192,
    )
    assert (
        str(found)
        == "batch 8192 uses 1 of 10 MB; larger ones are no faster; confirmed with 10 steps"
    )
    old = {
        name: value for name, value in dataclasses.asdict(found).items() if name != "no_faster_from"
    }
    assert MaxBatch.from_dict(old).no_faster_from is None  # as earlier versions wrote it
