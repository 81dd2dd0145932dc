"""Catalogue: every check, in the order in which they run."""

from __future__ import annotations

from kbatch.gpu_checks._device_checks import DEVICE_CHECKS
from kbatch.gpu_checks._work_checks import WORK_CHECKS

CHECKS = (*DEVICE_CHECKS, *WORK_CHECKS)
QUICK = tuple(check for check in CHECKS if check.quick)
