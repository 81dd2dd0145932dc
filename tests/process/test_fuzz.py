"""A sample of what scripts/fuzz_command_line.py and scripts/fuzz_project.py do at length."""

import os
import subprocess
import sys
from pathlib import Path

import fuzz_command_line
import fuzz_project
import fuzzing
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"  # on the path: see pyproject.toml
SECONDS = 60.0
ABSURD = (
    "--target 2, --target nan, --target inf, --target 0.5, --seconds-per-trial "
    "1e-9, --epochs 99999999999999999999, --sgd-rates 1e-300:1e300, "
    "--seed 99999999999, --batch-sizes 1_0, --batch-sizes ٣٢, --max-batch ٣٢, "
    "--max-batch ², --image-size 100000, --trials 1_0, --confirm ٣, "
    "--trials 0x10, --optimizers [/x], --data /dev/zero, --out /proc/none"
)
CALL_ALL = """
import sys
import fuzzing
for line in sys.argv[1].split(", "):
    print(fuzzing.command(["cats-vs-dogs", *line.split(" ")], 60).how, line)
print([name for name in ("tensorflow", "keras") if name in sys.modules])
"""


def test_absurd_values_are_refused_before_tensorflow_is_imported(tmp_path):
    paths = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", ""), str(SCRIPTS.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "1"}
    called = subprocess.run(
        [sys.executable, "-c", CALL_ALL, ABSURD],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    *ends, imported = called.stdout.splitlines()
    assert len(ends) == len(ABSURD.split(", "))
    assert [end for end in ends if end.split()[0] not in ("refused", "usage")] == []
    assert imported == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "4294967296"],
        ["--shape", "²"],
        ["--dtype", "U10"],
        ["--dtype", ",f4"],
        ["--ceiling", "1_0"],
    ],
)
def test_absurd_examples_are_refused(arguments, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def build(hp=None): pass\n")
    monkeypatch.chdir(tmp_path)
    ended = fuzzing.command(
        [
            "max-batch",
            "mine:build",
            *([] if "--shape" in arguments else ["--shape", "4"]),
            *arguments,
        ],
        SECONDS,
    )
    assert ended.how in ("refused", "usage"), ended.said


def test_command_lines_are_done_or_refused_in_one_sentence():
    found = [
        (line, ended)
        for line, ended in fuzz_command_line.run(40, 1, SECONDS)
        if ended.how not in fuzzing.GOOD
    ]
    assert found == []


def test_a_sample_of_broken_projects_is_read_refused_or_mended():
    found = [
        (words, use, ended)
        for words, use, ended in fuzz_project.run(5, 1, SECONDS)
        if ended.how not in fuzzing.GOOD
    ]
    assert found == []


def test_the_fuzzing_itself_sees_tracebacks_hangs_and_exit_codes(capsys):
    def several():
        print("error: one\ntwo", file=sys.stderr)
        sys.exit(2)

    def endless():
        while True:
            pass

    ends = {
        "traceback": lambda: 1 / 0,
        "hang": endless,
        "exit code": lambda: sys.exit(4),
        "several lines": several,
        "done": lambda: None,
    }
    assert [fuzzing.called(function, 0.2).how for function in ends.values()] == list(ends)
