"""Processes that are forked from one which has imported TensorFlow already.

Each has an exit code, streams, an environment and memory of its own, and TensorFlow has not begun
in it. It saves the 4 to 8 seconds that each import of TensorFlow takes. Tests of a process itself
(how it starts, is ended or imports) start one as users do.
"""

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from loky import ProcessPoolExecutor

from kbatch.runtime import worker

# what kbatch itself does while it is imported is left to each process
LIBRARIES = [
    "altair",
    "keras_tuner",
    "pandas",
    "scipy.stats",
    "sklearn.gaussian_process",
]
FAKE_GPU = Path(__file__).parents[1] / "fake_gpu"
# read while TensorFlow is imported: without oneDNN, memory that runs out is an error and no death
AT_IMPORT = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "FAKE_GPU": ""}


def context():
    """The context of multiprocessing whose server has imported the libraries."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(LIBRARIES)
    with mock.patch.dict(os.environ, AT_IMPORT):
        forkserver.ensure_running()
    return found


def server_id():
    """The process from which the others are forked; `None` before the first one."""
    return forkserver._forkserver._forkserver_pid


def run(target, *arguments, timeout=240):
    """What `subprocess.run` gives of a process that calls a function."""
    with tempfile.TemporaryDirectory() as folder:
        process = context().Process(
            target=_called, args=(target, arguments, dict(os.environ), os.getcwd(), folder)
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([target, *arguments], timeout)
        said = [(Path(folder) / name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess([target, *arguments], process.exitcode, *said)


def command(*arguments, timeout=240):
    """What `python -m kbatch` gives with these arguments."""
    return run(_command, *map(str, arguments), timeout=timeout)


def code(text, *arguments, timeout=240):
    """What `python -c` gives with this text and these arguments."""
    return run(_code, text, *map(str, arguments), timeout=timeout)


class ForkedWorker(worker.Worker):
    """A worker whose process is forked."""

    def _ready(self):
        if self._executor is None:
            # closed with the process
            said = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
            self._said = said
            environment = {**os.environ, **self.environment}
            self._executor = ProcessPoolExecutor(
                max_workers=1,
                context=context(),
                initializer=_begin,
                initargs=(environment, self._said.name, list(sys.path)),
            )
            self.starts += 1
        return self._executor


def _begin(environment, said, path):
    _take(environment)
    worker._begin(os.getppid(), said, path)


def _take(environment):
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if environment.get("FAKE_GPU"):
        import tensorflow

        # another `sitecustomize` may belong to the system
        spec = importlib.util.spec_from_file_location("fake_gpu", FAKE_GPU / "sitecustomize.py")
        fake = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fake)
        fake.pretend(tensorflow)


def _called(target, arguments, environment, working_folder, folder):
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        stream.flush()
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT), stream.fileno())
    _take(environment)
    os.chdir(working_folder)
    target(*arguments)


def _command(*arguments):
    from kbatch.__main__ import main

    sys.argv = ["kbatch", *arguments]
    main()


def _code(text, *arguments):
    sys.argv = ["-c", *arguments]
    exec(text, {"__name__": "__main__"})
