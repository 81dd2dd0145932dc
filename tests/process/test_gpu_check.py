"""The checks of a GPU: their runner, with made-up checks, and the script on the fake GPU."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_check as script
import psutil
import pytest
from made_up_checks import check

from kbatch.cli import gpu_check, quick_checks
from kbatch.cli.gpu_check import GpuReport, GpuRow, Result, Runner
from kbatch.cli.quick_checks import QUICK

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """Children find the made-up checks, and no fake is asked for."""
    folders = [
        str(ROOT / "tests" / "support"),
        str(ROOT / "scripts"),
        str(ROOT),
        os.environ.get("PYTHONPATH", ""),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    monkeypatch.delenv("FAKE_GPU", raising=False)


@pytest.fixture
def seen(monkeypatch):
    """TensorFlow is not asked for its GPUs."""
    monkeypatch.setattr(gpu_check, "gpus", lambda: ["A CARD"])


@pytest.fixture
def ran(tmp_path):
    """Runs checks, and returns their rows by name and the content of the file."""

    def ran(*checks, **options):
        report = GpuReport(tmp_path / "rows.json", ["A CARD"])
        Runner(report, **options).run(checks)
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
    report = GpuReport(tmp_path / "rows.json", [])

    def look(row, count):
        content = json.loads(report.path.read_text())
        written.append(([each["check"] for each in content["rows"]], content["ended"], count))

    Runner(report, on_row=look).run([check("A1", "passes"), check("A2", "raises")])
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


def test_what_the_fake_lacks_is_not_judged(monkeypatch):
    monkeypatch.setenv("FAKE_GPU", "1")
    report = GpuReport(None, [])
    Runner(report).run([check("A1", "passes", unrehearsed="no two memories")])
    assert report.rows[0].passed is None
    assert report.rows[0].text == "cannot be rehearsed: no two memories"
    passed, failed = Result(True, {}, "x"), Result(False, {}, "x")
    assert passed.unless_rehearsed(True, "why").passed is None
    assert passed.unless_rehearsed(False, "why") == passed
    assert failed.unless_rehearsed(True, "why") == failed


@pytest.mark.parametrize(("function", "code"), [("passes", 0), ("fails", 1), ("raises", 1)])
def test_the_exit_code_is_1_if_a_check_failed(seen, tmp_path, capsys, function, code):
    checks = [check("A1", function), check("A2", "passes")]
    assert script.main(["--out", str(tmp_path / "out.json")], checks) == code
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("[1/2] ")
    assert said[-1].endswith(f"see {tmp_path / 'out.json'}")


@pytest.mark.parametrize("given", [["--groups", "A,Q"], ["--only", "A9"], ["--only", "A1.x"]])
def test_unknown_names_are_refused(seen, capsys, given):
    assert script.main(given, [check("A1", "passes")]) == 2
    assert "Received: " in capsys.readouterr().err


def test_groups_and_names_choose_checks():
    checks = [check(name, "passes") for name in ("A1", "B1.one", "B1.two", "B2")]

    def names(*chosen):
        return [each.name for each in script.choose(checks, *chosen)]

    assert names(["B"], []) == ["B1.one", "B1.two", "B2"]
    assert names([], ["B1", "A1"]) == ["A1", "B1.one", "B1.two"]
    assert names([], []) == [each.name for each in checks]


@pytest.fixture(scope="module")
def catalogue():
    """All checks: the quick ones, and those that pytest collects in tests/gpu."""
    return script.catalogue()


def test_the_list_names_every_check_and_runs_none(catalogue, capsys):
    assert script.main(["--list"], catalogue) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(catalogue)


def test_ctrl_c_keeps_the_rows(tmp_path):
    out, pid = tmp_path / "out.json", tmp_path / "pid"
    code = (
        "import sys; from made_up_checks import check\n"
        "import gpu_check as script\n"
        "script.gpu_check.gpus = lambda: ['A CARD']\n"
        f"checks = [check('A1', 'passes'), check('A2', 'hangs', {str(pid)!r})]\n"
        f"sys.exit(script.main(['--out', {str(out)!r}], checks))"
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
        "import sys, gpu_check\n"
        "gpu_check.main(['--list'], gpu_check.QUICK)\n"
        "print('imported', {'tensorflow', 'keras'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.endswith("imported set()\n"), said.stderr


def test_every_check_has_a_name_of_its_own_and_a_process(catalogue):
    assert len({each.name for each in catalogue}) == len(catalogue) == 86
    assert catalogue[: len(QUICK)] == list(QUICK)
    for each in catalogue:
        assert each.expected_seconds <= each.seconds_limit
        assert each.command[:2] == ("-m", "pytest") or each in QUICK
    for function in re.findall(r"quick_checks:(\w+)", str([each.command for each in QUICK])):
        assert callable(getattr(quick_checks, function))


TOY = """
import pytest
from kbatch.cli.gpu_check import Result

@pytest.mark.gpu("X1", "a criterion", seconds_limit=60, expected_seconds=0)
@pytest.mark.parametrize(
    "word", ["yes", "no", pytest.param("why", marks=pytest.mark.unrehearsed("so"))]
)
def test_toy(scale, word):
    if word == "why":
        raise ValueError(word)
    return Result(word == "yes", {"rehearsed": scale.rehearsed}, word)

@pytest.mark.gpu("L1", "another criterion", seconds_limit=60, expected_seconds=0, shares=True)
def test_unknown(scale):
    return Result(None, text="who knows")
"""


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """The folder of a few checks that take no TensorFlow, which the script takes for its own."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(ROOT / "tests" / "gpu" / name, folder)
    (folder / "test_toy.py").write_text(TOY)
    monkeypatch.setattr(script, "TESTS", tmp_path)
    return folder


def test_a_test_of_pytest_is_a_check(toys, ran):
    checks = script.catalogue()[len(QUICK) :]
    assert [each.name for each in checks] == ["L1", "X1.yes", "X1.no", "X1.why"]
    assert [each.shares for each in checks] == [True, False, False, False]
    assert [each.unrehearsed for each in checks] == ["", "", "", "so"]
    rows, _ = ran(*checks)
    assert [row.passed for row in rows.values()] == [None, True, False, False]
    assert [row.text for row in rows.values()][:3] == ["who knows", "yes", "no"]
    assert rows["X1.yes"].measured == {"rehearsed": False}
    assert rows["X1.why"].measured == {"error": "ValueError"}
    assert "raise ValueError(word)" in rows["X1.why"].text


def test_one_process_runs_one_check(toys):
    for name, code in [("", 4), ("::test_toy[yes]", 0), ("::test_toy[no]", 1)]:
        command = [sys.executable, "-m", "pytest", f"{toys / 'test_toy.py'}{name}"]
        said = subprocess.run(command, capture_output=True, text=True)
        assert said.returncode == code, said.stdout
        assert ("Run `python scripts/gpu_check.py`" in said.stderr) == (code == 4)


def test_without_pytest_the_script_refuses(monkeypatch, capsys):
    answer = subprocess.CompletedProcess([], 1, "", "No module named pytest")
    monkeypatch.setattr(script.subprocess, "run", lambda *given, **named: answer)
    assert script.main(["--list"]) == 2
    assert "No module named pytest" in capsys.readouterr().err


def test_the_quick_checks_are_those_of_the_doctor():
    names = {each.name for each in QUICK}
    assert names == {"E1", "E2", "E3", "E4", "E5", "M1", "L1", "O1.elementwise"} | {
        "T1.float32.plain"
    }


def test_without_a_gpu_the_command_refuses(monkeypatch, capsys, tmp_path):
    answer = subprocess.CompletedProcess([], 0, "a greeting\n[]\n", "")
    monkeypatch.setattr(gpu_check.subprocess, "run", lambda *given, **named: answer)
    assert script.main(["--out", str(tmp_path / "out.json")], QUICK) == 2
    said = capsys.readouterr().err
    assert "TensorFlow must see a GPU" in said
    assert "kbatch doctor" in said
    assert not (tmp_path / "out.json").exists()


def test_a_line_says_how_far_the_checks_are():
    row = GpuRow("L1", False, "a criterion", {}, 3.14, "two\nlines " + "x" * 500)
    said = row.line(7, 40)
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
