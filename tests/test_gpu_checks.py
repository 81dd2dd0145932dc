"""The checks of a GPU: their runner, with made-up checks, and the command on the fake GPU."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from made_up_checks import check

from kbatch.errors import KbatchError
from kbatch.gpu_checks import command, sight
from kbatch.gpu_checks.catalogue import CHECKS, QUICK
from kbatch.gpu_checks.check import Result, Row
from kbatch.gpu_checks.report import Report
from kbatch.gpu_checks.runner import Runner, RunOptions

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """Children find the made-up checks, and no fake is asked for."""
    folders = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    monkeypatch.delenv("FAKE_GPU", raising=False)


@pytest.fixture
def seen(monkeypatch):
    """TensorFlow is not asked for its GPUs."""
    monkeypatch.setattr(sight, "gpus", lambda: ["A CARD"])


@pytest.fixture
def ran(tmp_path):
    """Runs checks, and returns their rows by name and the content of the file."""

    def ran(*checks, **options):
        report = Report(tmp_path / "rows.json", ["A CARD"])
        Runner(RunOptions(False, **options), report).run(checks)
        return {row.check: row for row in report.rows}, json.loads(report.path.read_text())

    return ran


def test_each_row_has_what_was_measured(ran):
    rows, content = ran(check("A1", "passes", "one", "two"), check("A2", "fails"))
    assert rows["A1"].measured == {"words": ["one", "two"], "rehearsed": False}
    assert (rows["A1"].passed, rows["A2"].passed) == (True, False)
    assert content["rows"][1] == {
        "check": "A2",
        "pass": False,
        "criterion": "a criterion",
        "measured": {"number": 7},
        "seconds": rows["A2"].seconds,
        "text": "too far",
    }
    assert (content["ended"], content["gpus"]) == ("complete", ["A CARD"])


def test_a_row_is_written_as_soon_as_it_is_known(tmp_path):
    written = []
    report = Report(tmp_path / "rows.json", [])

    def look(row, count):
        content = json.loads(report.path.read_text())
        written.append(([each["check"] for each in content["rows"]], content["ended"], count))

    options = RunOptions(False, on_row=look)
    Runner(options, report).run([check("A1", "passes"), check("A2", "raises")])
    assert written == [(["A1"], "running", 2), (["A1", "A2"], "running", 2)]


def test_a_check_that_hangs_is_killed_with_its_processes(ran, tmp_path):
    file = tmp_path / "pid"
    rows, _ = ran(check("A1", "hangs", str(file), seconds_limit=2.0), check("A2", "passes"))
    assert rows["A1"].passed is False
    assert "no answer within 2 seconds" in rows["A1"].text
    assert rows["A2"].passed
    assert _is_gone(int(file.read_text()))


def test_a_check_that_dies_or_raises_is_a_failed_row(ran):
    rows, _ = ran(check("A1", "dies"), check("A2", "raises"), check("A3", "not_there"))
    assert [row.passed for row in rows.values()] == [False] * 3
    assert rows["A1"].measured == {"exit_code": -9}
    assert "last words" in rows["A1"].text
    assert "no such card" in rows["A2"].text
    assert "not_there" in rows["A3"].text


def test_what_does_not_fit_the_budget_is_skipped(ran):
    rows, _ = ran(
        check("A1", "hangs", seconds_limit=600.0),
        check("A2", "passes", expected_seconds=60.0),
        check("A3", "passes"),
        budget_seconds=2.0,
    )
    assert [row.passed for row in rows.values()] == [None] * 3
    assert rows["A1"].text == "the budget was spent while it ran"
    assert rows["A2"].text == "not begun: the budget was spent"


def test_only_checks_that_share_the_card_run_at_once(ran, tmp_path):
    (tmp_path / "running").mkdir()
    folder = str(tmp_path / "running")
    sharing = [check(f"A{number}", "notes", folder, shares=True) for number in range(3)]
    alone = [check(f"B{number}", "notes", folder) for number in range(2)]
    rows, _ = ran(*sharing, *alone, at_once=3)
    beside = {name: row.measured["beside"] for name, row in rows.items()}
    assert max(beside[f"A{number}"] for number in range(3)) > 1
    assert (beside["B0"], beside["B1"]) == (1, 1)


def test_what_the_fake_lacks_is_not_judged(tmp_path):
    report = Report(None, [])
    Runner(RunOptions(True), report).run([check("A1", "passes", unrehearsed="no two memories")])
    assert report.rows[0].passed is None
    assert report.rows[0].text == "cannot be rehearsed: no two memories"
    passed, failed = Result(True, {}, "x"), Result(False, {}, "x")
    assert passed.unless_rehearsed(True, "why").passed is None
    assert passed.unless_rehearsed(False, "why") == passed
    assert failed.unless_rehearsed(True, "why") == failed


@pytest.mark.parametrize(("function", "code"), [("passes", 0), ("fails", 1), ("raises", 1)])
def test_the_exit_code_is_1_if_a_check_failed(seen, tmp_path, capsys, function, code):
    checks = [check("A1", function), check("A2", "passes")]
    assert command.main(["--out", str(tmp_path / "out.json")], None, checks) == code
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("[1/2] ")
    assert said[-1].endswith(f"see {tmp_path / 'out.json'}")


@pytest.mark.parametrize("given", [["--groups", "A,Q"], ["--only", "A9"], ["--only", "A1.x"]])
def test_unknown_names_are_refused(seen, capsys, given):
    assert command.main(given, None, [check("A1", "passes")]) == 2
    assert "Received: " in capsys.readouterr().err


def test_groups_and_names_choose_checks():
    checks = [check(name, "passes") for name in ("A1", "B1.one", "B1.two", "B2")]

    def names(*chosen):
        return [each.name for each in command.choose(checks, *chosen)]

    assert names(["B"], []) == ["B1.one", "B1.two", "B2"]
    assert names([], ["B1", "A1"]) == ["A1", "B1.one", "B1.two"]
    assert names([], []) == [each.name for each in checks]


def test_the_list_names_every_check_and_runs_none(capsys):
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS)


def test_ctrl_c_keeps_the_rows(tmp_path):
    out, pid = tmp_path / "out.json", tmp_path / "pid"
    code = (
        "import sys; from made_up_checks import check\n"
        "from kbatch.gpu_checks import command, sight\n"
        "sight.gpus = lambda: ['A CARD']\n"
        f"checks = [check('A1', 'passes'), check('A2', 'hangs', {str(pid)!r})]\n"
        f"sys.exit(command.main(['--out', {str(out)!r}], None, checks))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while not pid.exists() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopped" in said
    content = json.loads(out.read_text())
    assert [row["check"] for row in content["rows"]] == ["A1"]
    assert content["ended"] == "stopped"
    assert _is_gone(int(pid.read_text()))


def test_the_parent_imports_no_tensorflow():
    code = (
        "import sys; from kbatch.gpu_checks import catalogue, command\n"
        "command.main(['--list'])\n"
        "print('imported', {'tensorflow', 'keras'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.endswith("imported set()\n"), said.stderr


def test_every_check_has_a_function_and_a_name_of_its_own():
    assert len({each.name for each in CHECKS}) == len(CHECKS) > 60
    for each in CHECKS:
        module, _, name = each.function.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), each.name
        assert each.expected_seconds <= each.seconds_limit


def test_the_quick_checks_are_those_of_the_doctor():
    names = {each.name for each in QUICK}
    assert names == {"E1", "E2", "E3", "E4", "E5", "M1", "L1", "O1.elementwise"} | {
        "T1.float32.plain"
    }


def test_without_a_gpu_the_command_refuses(monkeypatch, capsys, tmp_path):
    answer = subprocess.CompletedProcess([], 0, "a greeting\n[]\n", "")
    monkeypatch.setattr(sight.subprocess, "run", lambda *given, **named: answer)
    assert command.main(["--out", str(tmp_path / "out.json")]) == 2
    said = capsys.readouterr().err
    assert "TensorFlow must see a GPU" in said
    assert "kbatch doctor" in said
    assert not (tmp_path / "out.json").exists()


def test_the_fake_is_refused_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_GPU", "1")
    for folder in (None, tmp_path):
        with pytest.raises(KbatchError, match="tests/fake_gpu"):
            sight.wear_fake(folder)


def test_a_line_says_how_far_the_checks_are():
    row = Row("L1", False, "a criterion", {}, 3.14, "two\nlines " + "x" * 500)
    said = command.line(row, 7, 40)
    assert said.startswith("[ 7/40] FAIL L1 ")
    assert said.endswith(" …")
    assert "two lines" in said


@pytest.mark.slow  # .ci/run rehearses it in every run
def test_the_script_rehearses_on_the_fake_gpu(tmp_path):
    content = _rehearsed(tmp_path / "out.json", "M1,M2")
    assert content["rehearsed_on_the_fake_gpu"]
    assert content["gpus"] == ["FAKE GPU"]
    assert [row["pass"] for row in content["rows"]] == [True, None]
    assert content["rows"][0]["measured"]["current_grew"] > 0


@pytest.mark.slow
def test_a_little_more_than_the_answer_fails(tmp_path):
    (row,) = _rehearsed(tmp_path / "out.json", "F1.cnn.float32.plain")["rows"]
    measured = row["measured"]
    assert measured["larger_size"] >= int(1.15 * measured["batch_size"])
    assert set(measured["survived"]) == {"passed"}
    assert "passed" not in measured["larger"]


def _rehearsed(out, only):
    """What the script writes of some checks on the fake GPU, of which none fails."""
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", only, "--out", str(out)],
        env={**os.environ, "FAKE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(out.read_text())


def _is_gone(pid):
    """Whether a process ends within a few seconds."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False
