"""The quick checks of a GPU, for `kbatch doctor --gpu`."""

from __future__ import annotations

from kbatch.errors import KbatchError
from kbatch.gpu_checks import command, sight
from kbatch.gpu_checks.catalogue import QUICK
from kbatch.gpu_checks.report import Report


def passes_quick_checks() -> bool:
    """Run the quick checks, print a line of each, and tell whether none failed.

    A machine without a GPU fails, since it was asked for one.
    """
    try:
        report = Report(None, sight.gpus())
    except KbatchError as error:
        print(f"! {error}")
        return False
    command.run(QUICK, report)
    print(report.summary())
    return not report.failed
