"""`kbatch recompute`: the front as table and figure, a plan as text and file, and errors."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import memory_models
import pytest
from typer.testing import CliRunner

from kbatch import Recipe, recompute
from kbatch.cli.app import app
from kbatch.cli.recompute import Choice, static_bytes, table
from kbatch.errors import MemoryLimitError
from kbatch.recompute._planner import resizer

HERE = Path(__file__).parents[1] / "support"


def run(*arguments, folder):
    command = [sys.executable, "-m", "kbatch", "recompute", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        timeout=120,
    )


@pytest.fixture(scope="module")
def deep():
    return memory_models.deep()


def test_the_command_prints_draws_and_keeps_the_plan_that_fits(tmp_path, deep):
    said = run(
        "memory_models:deep",
        "--shape",
        "32,32,3",
        "--memory-limit",
        "40MB",
        "--plan",
        "plan.json",
        folder=tmp_path,
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    assert said.stdout.splitlines()[0].split() == [
        "plan",
        "segments",
        "run",
        "again",
        "kept",
        "MB",
        "peak",
        "MB",
        "more",
        "time",
        "largest",
        "batch",
    ]
    assert (tmp_path / "recompute.png").read_bytes().startswith(b"\x89PNG")
    plan = recompute.Plan.from_json((tmp_path / "plan.json").read_text())
    assert str(plan).splitlines()[0] in said.stdout
    assert plan.recomputes
    recompute.apply(deep, plan)
    recompute.remove(deep)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("memory_models:deep", "--shape", "5"), "--shape must be that of the model's input"),
        (("memory_models:deep", "--shape", "32"), "--shape must be that of the model's input"),
        (("memory_models:deep", "--shape", "5,x"), "--shape must be whole numbers"),
        (("memory_models:deep", "--memory-limit", "2MB"), "Some plan must fit into 2.0 MB"),
        (("memory_models:nothing",), "must return a keras.Model"),
        (("memory_models:missing",), "must be a function that returns a model"),
        (("nowhere:build",), "must be importable"),
        (("memory_models:deep", "--batch-size", "0"), "`batch_size` must be a whole number"),
        (("memory_models:raises",), "ZeroDivisionError: my own bug"),
        (
            ("memory_models:deep", "--figure", "missing/folder/a.png"),
            "--figure must be a .png file that can be written",
        ),
        (
            ("memory_models:deep", "--figure", "."),
            "--figure must be a .png file that can be written",
        ),
        (("memory_models:deep", "--plan", "."), "--plan must be a .json file that can be written"),
        (
            ("memory_models:deep", "--figure", "/proc/a.png"),
            "--figure must be a .png file that can be written",
        ),
        (
            ("memory_models:deep", "--plan", "/proc/a.json"),
            "--plan must be a .json file that can be written",
        ),
        (("memory_models:deep", "--plan", "folder.json"), "Name a file, not a folder"),
        (("memory_models:deep", "--figure", "a.jpg"), "Name one that ends in .png"),
        (
            ("memory_models:deep", "--optimizer", "compiled"),
            "'compiled' is not one of 'sgd', 'adam'",
        ),
    ],
)
def test_nonsense_is_one_sentence(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    (tmp_path / "folder.json").mkdir()
    said = CliRunner().invoke(app, ["recompute", *arguments])
    assert said.exit_code == 2
    assert says in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "recompute.png").exists() or says.startswith("Some plan")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('my own module')", "RuntimeError: my own module"),
        ("def build(:", "SyntaxError"),
        ("build = 1\0", "null bytes"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("import sys\ndef build(): sys.exit(4)", "SystemExit: 4"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(
    text, says, tmp_path, monkeypatch, request
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"broken_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(text)
    for name in (f"{module}:build", f"{module}.inner:build"):
        said = CliRunner().invoke(app, ["recompute", name])
        assert said.exit_code == 2, said.exception
        assert len(said.stderr.strip().splitlines()) == 1
        assert says in said.stderr or name.endswith(".inner:build")


def test_the_chosen_plan_is_the_fastest_that_fits(deep):
    plans, resized = recompute.front(deep, 32), resizer(deep)
    static = static_bytes(deep, Recipe(optimizer="adam"))
    weights = sum(variable.numpy().nbytes for variable in deep.variables)
    assert weights < static < 3.1 * weights
    for limit in range(static + 2_000_000, static + 80_000_000, 8_000_000):
        choice = Choice(plans, resized, static, limit)
        fitting = [plan for plan in plans if choice.needed_bytes(plan) <= limit]
        if fitting:
            assert choice.chosen == min(fitting, key=lambda plan: plan.extra_seconds_ratio)
        else:
            with pytest.raises(MemoryLimitError, match="Some plan must fit"):
                assert choice.chosen
        largest = choice.largest(plans[-1])
        assert choice.needed_bytes(resized(plans[-1], largest)) <= limit
        assert choice.needed_bytes(resized(plans[-1], largest + 1)) > limit
    assert Choice(plans, resized, static, None).chosen == plans[-1]
    # names above, and three lines below
    assert len(table(Choice(plans, resized, static, None)).splitlines()) == len(plans) + 4


def test_a_model_of_one_batch_size_takes_that_or_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    arguments = ["recompute", "memory_models:fixed", "--batch-size", "16", "--memory-limit"]
    said = CliRunner().invoke(app, [*arguments, "20MB"])
    assert said.exit_code == 0, said.stderr
    lines = said.stdout.splitlines()
    rows = [
        line.split()
        for line in lines[
            1 : next(index for index, line in enumerate(lines) if line.startswith("weights"))
        ]
    ]
    assert {row[-1] for row in rows} == {"0", "16"}
    said = CliRunner().invoke(app, [*arguments, "1MB"])
    assert said.exit_code == 2
    assert "Raise the limit, or take a smaller model" in said.stderr


def test_the_slots_of_the_optimizer_count():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1000)])
    assert static_bytes(model, Recipe(optimizer="adam")) - static_bytes(
        model, Recipe(optimizer="sgd")
    ) == pytest.approx(4 * 5000, abs=64)
