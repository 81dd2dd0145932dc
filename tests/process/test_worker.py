"""A worker outlives nothing: crash, kill, hang, abort, noise; and its parent outlives it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbatch.runtime.worker import Death, Worker

HERE = Path(__file__).parents[1] / "support"


def killed():
    os.kill(os.getpid(), 9)


def leaves_something():
    os.environ["KBATCH_TEST_PREPARED"] = "something"


def what_is_there():
    return os.environ.get("KBATCH_TEST_PREPARED")


def aborted():
    os.abort()


def left():
    os._exit(3)


def segfaulted():
    import ctypes

    ctypes.string_at(0)


def noisy():
    print("noise " * 10_000)
    os.write(2, b"more noise")
    return 7


def exits(code):
    sys.exit(code)


def interrupted():
    raise KeyboardInterrupt


def gone(pid):
    for _ in range(100):
        if (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
        ):
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def worker():
    with Worker({"KBATCH_TEST": "yes"}) as worker:
        yield worker


@pytest.mark.parametrize(
    ("die", "code"), [(killed, -9), (aborted, -6), (left, 3), (segfaulted, -11)]
)
def test_a_death_is_told_and_the_next_call_has_a_new_process(worker, die, code):
    first = worker.call(os.getpid, timeout_seconds=60)
    assert worker.call(die, timeout_seconds=60).exit_code == code
    assert not worker.alive
    second = worker.call(os.getpid, timeout_seconds=60)
    assert first != second
    assert worker.starts == 2


@pytest.mark.parametrize(
    ("end", "death"),
    [
        ((exits, 3), Death(3, "sys.exit(3)")),
        ((exits, "no GPU"), Death(1, "sys.exit('no GPU')")),
        ((exits, None), Death(0, "sys.exit(None)")),
        ((interrupted,), Death(130, "KeyboardInterrupt")),
    ],
)
def test_a_function_that_ends_its_process_spares_the_parent(worker, end, death):
    assert worker.call(*end, timeout_seconds=60) == death
    assert not worker.alive


def test_the_watchdog_ends_a_call_that_hangs(worker):
    pid = worker.call(os.getpid, timeout_seconds=60)
    death = worker.call(time.sleep, 600, timeout_seconds=0.5)
    assert (death.exit_code, str(death)) == (None, "it hung")
    assert gone(pid)


def test_what_a_dying_worker_said_is_kept(worker):
    assert "Segmentation fault" in worker.call(segfaulted, timeout_seconds=60).said


def test_noise_stays_in_the_worker(worker, capfd):
    assert worker.call(noisy, timeout_seconds=60) == 7
    assert capfd.readouterr() == ("", "")


def test_functions_without_a_module_travel(worker):
    factor = 3
    assert worker.call(lambda number: number * factor, 5, timeout_seconds=60) == 15
    scope: dict = {"__name__": "__main__"}
    # as a notebook's cell defines it
    exec("def twice(number):\n    return number * two\ntwo = 2", scope)
    assert worker.call(scope["twice"], 5, timeout_seconds=60) == 10


def test_globals_stay_between_calls_in_its_own_environment(worker):
    def count():
        import builtins

        builtins.kbatch_calls = getattr(builtins, "kbatch_calls", 0) + 1
        return builtins.kbatch_calls

    assert [worker.call(count, timeout_seconds=60) for _ in range(3)] == [1, 2, 3]
    assert worker.call(os.getenv, "KBATCH_TEST", timeout_seconds=60) == "yes"
    assert os.getenv("KBATCH_TEST") is None


def test_a_worker_may_grow(worker):
    def grow(size):
        import builtins

        builtins.kbatch_held = bytearray(size)
        builtins.kbatch_held[::4096] = b"x" * len(builtins.kbatch_held[::4096])
        return os.getpid()

    first = worker.call(grow, 1, timeout_seconds=60)
    time.sleep(1.2)  # loky looks once a second
    assert [worker.call(grow, 400_000_000, timeout_seconds=60) for _ in range(3)] == [first] * 3
    time.sleep(1.2)
    assert worker.call(os.getpid, timeout_seconds=60) == first
    assert worker.call(os.getpid, timeout_seconds=60) == first


def test_errors_are_raised_as_they_are(worker):
    with pytest.raises(ZeroDivisionError):
        worker.call(divmod, 1, 0, timeout_seconds=60)
    assert worker.alive


def test_no_process_is_left_when_the_parent_is_killed():
    code = (
        "import os, time\nfrom kbatch.runtime.worker import Worker\nworker = Worker()\n"
        "print(worker.call(os.getpid, timeout_seconds=60), flush=True)\n"
        "worker.call(time.sleep, 600, timeout_seconds=600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1]
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert gone(pid)


def test_a_death_is_a_value():
    assert Death(-9, "") == Death(-9, "")
    assert str(Death(-9, "")) == "its process died with exit code -9"


def test_a_prepared_process_has_begun_before_it_is_called():
    with Worker() as worker:
        worker.prepare(leaves_something)
        assert worker.alive
        assert worker.call(what_is_there, timeout_seconds=60) == "something"
        assert worker.starts == 1
