"""Checks of a real GPU: `python scripts/gpu_check.py` runs each in a process of its own.

A check takes the `Scale` as `scale`, and returns a `Result`. Its mark `gpu` has the fields of a
`GpuCheck`; parameters, if there are any, are the end of its name.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from kbatch.cli import gpu_check

CATALOGUE = "GPU_CHECK_CATALOGUE"  # the variable that names a file for all that is collected


def pytest_configure():
    """End with the script that started this process."""
    if gpu_check.RESULT in os.environ:
        gpu_check.end_with_parent()


def pytest_collection_finish(session):
    """Write the catalogue, if it is asked for; else refuse to run more than one check."""
    if CATALOGUE in os.environ:
        described = [as_check(item) for item in session.items]
        Path(os.environ[CATALOGUE]).write_text(json.dumps(described), encoding="utf-8")
    elif len(session.items) > 1 and not session.config.option.collectonly:
        raise pytest.UsageError(
            "TensorFlow takes a GPU once in a process, so one check can be run. "
            f"Received: {len(session.items)}. Run `python scripts/gpu_check.py`, or name one."
        )


def as_check(item):
    """Return the fields of a test as a `GpuCheck`."""
    mark = item.get_closest_marker("gpu")
    name, criterion = mark.args
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {
        "name": ".".join([name, *parameters]),
        "criterion": criterion,
        "command": ["-m", "pytest", f"{item.path}::{item.name}"],
        "unrehearsed": "".join(why.args[0] for why in item.iter_markers("unrehearsed")),
        **mark.kwargs,
    }


@pytest.fixture
def scale():
    return gpu_check.scale()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Call a check; write its result for the script, and tell it to pytest."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    result = gpu_check.found(partial(pyfuncitem.obj, **arguments))
    if gpu_check.RESULT in os.environ:
        gpu_check.tell(result)
    if result.passed is None:
        pytest.skip(result.text)
    if not result.passed:
        pytest.fail(f"{dict(result.measured)}\n{result.text}", pytrace=False)
    return True


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    """Leave at once: what TensorFlow does at the end of a process is no part of a check."""
    if gpu_check.RESULT in os.environ:
        sys.stdout.flush()
        os._exit(0)
