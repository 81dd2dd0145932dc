"""Catalogue: every check, in the order in which they run."""

from __future__ import annotations

from kbatch.gpu_checks._device_checks import DEVICE_CHECKS
from kbatch.gpu_checks._work_checks import WORK_CHECKS

ALL = (*DEVICE_CHECKS, *WORK_CHECKS)
QUICK = tuple(check for check in ALL if check.quick)
# the quick ones first: a small budget is spent on as many questions as possible
CHECKS = (*QUICK, *(check for check in ALL if not check.quick))
