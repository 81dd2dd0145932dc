"""Fixtures of all tests: quiet TensorFlow with a CPU that tells bytes, small data and models."""

import contextlib
import functools
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
# By default the CPU decides, and what a convolution takes to work in differs between them.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from pathlib import Path

import forked
import numpy as np
import pytest

# Python imports the fake by itself, under a name that others have too; the checks of a GPU need a
# process each, and scripts/gpu_check.py starts them
collect_ignore = ["fake_gpu", "gpu", "support"]
GRADIENTS = "kbatch.runtime.tensorflow_private"
SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")
PHOTOGRAPHS = Path(__file__).resolve().parents[2] / "shared" / "data" / "PetImages"


def pytest_configure():
    """Take Ctrl-C as in a foreground shell: one in the background has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not ask for
def pytest_collection_modifyitems(items):
    """Mark the tests of slow_tests.txt as slow: others show the same in part, in less time."""
    listed = set(SLOW_TESTS.read_text().splitlines())
    for item in items:
        name = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        if name in listed or name.partition("[")[0] in listed:
            item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc):
    """Refuse sets as parameters: their order differs in each worker of xdist."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if len(mark.args) > 1 and isinstance(mark.args[1], (set, frozenset)):
            raise pytest.UsageError(f"{metafunc.function.__name__}: parameters must be in order")


@pytest.fixture(scope="module", autouse=True)
def a_heap_of_its_own():
    """Keep what earlier modules left alive out of the garbage collections of this one.

    Afterwards, forget the custom gradients of its models, which TensorFlow would keep, and the
    models with them.
    """
    gc.collect()
    gc.freeze()
    started = "tensorflow" in sys.modules  # tests of light modules do not import it
    before = importlib.import_module(GRADIENTS).registered_gradients() if started else frozenset()
    yield
    if "tensorflow" in sys.modules:
        importlib.import_module(GRADIENTS).purge_gradients(before)


@pytest.fixture(scope="session")
def points():
    """A learnable two-class problem: 600 training and 200 validation points of 12 numbers."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=12)
    x = rng.normal(size=(800, 12)).astype("float32")
    y = (x @ weights + rng.normal(size=800) > 0).astype("int32")
    return (x[:600], y[:600]), (x[600:], y[600:])


@pytest.fixture(scope="session")
def build():
    """A compiled model for `points`."""
    import keras

    def build(hp=None):
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
        )
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    return build


@pytest.fixture(scope="session")
def raw():
    """An uncompiled model for `points`."""
    import keras

    def raw(hp=None):
        return keras.Sequential(
            [
                keras.Input((12,)),
                keras.layers.Dense(16, "relu"),
                keras.layers.Dense(1, "sigmoid", dtype="float32"),
            ]
        )

    return raw


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A folder for what is made once a test run: of all workers of xdist, where there are any."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def finished(points, stored):
    """The folder of a search of two trials, only to be read: see support/short_searches.py."""
    import short_searches

    make = functools.partial(short_searches.finish, points=points)
    return short_searches.stored_once(stored / "finished", make)


@pytest.fixture(scope="session")
def confirmed(points, finished, stored):
    """The same with confirmations of both trials, only to be read."""
    import short_searches

    def make(folder):
        shutil.copytree(finished, folder)
        short_searches.confirm(folder, points)

    return short_searches.stored_once(stored / "confirmed", make)


@pytest.fixture(scope="session")
def photographs():
    """The folder of real photographs, where there is one."""
    if not PHOTOGRAPHS.is_dir():
        pytest.skip(f"no photographs at {PHOTOGRAPHS}")
    return PHOTOGRAPHS


@pytest.fixture
def own_policy():
    """The policy and the float type are put back after the test."""
    import keras

    before = keras.config.dtype_policy(), keras.config.floatx()
    yield
    keras.config.set_floatx(before[1])
    keras.config.set_dtype_policy(before[0])


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Workers that import the tests' models, keep no cache, and raise when out of memory."""
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "support"))


@pytest.fixture
def forked_workers(monkeypatch):
    """Probers whose workers need not import TensorFlow."""
    monkeypatch.setattr("kbatch.memory._prober.Worker", forked.ForkedWorker)


@pytest.fixture
def fake_gpu(monkeypatch):
    """Every new process says that it has a GPU of 400 MiB; see fake_gpu/sitecustomize.py."""
    monkeypatch.setenv("FAKE_GPU", "1")
    folders = [str(forked.FAKE_GPU), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))


@pytest.fixture
def no_worker_is_left():
    """Fails a test that leaves a process of loky running."""
    before = workers()
    yield
    for _ in range(50):
        if workers() <= before:
            return
        time.sleep(0.1)
    raise AssertionError(f"left running: {workers() - before}")


def workers():
    """Processes of loky whose parent is this one, or the one that they are forked from."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if (
                int(parent) in (os.getpid(), forked.server_id())
                and state != "Z"
                and re.search("popen_loky|forkserver", (folder / "cmdline").read_text())
                and int(folder.name) != forked.server_id()
            ):
                found.add(folder.name)
    return found
