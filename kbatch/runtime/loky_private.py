"""Private names of loky that kbatch needs, one small function for each.

Each function says which file of which release the name was read in;
`tests/process/test_loky_private.py` fails when a release takes one away.
"""

from __future__ import annotations

import re

UNKNOWN_EXIT_CODE = 1


def exit_code(error: Exception) -> int:
    """Return the exit code of the worker whose death a `BrokenProcessPool` or its kind reports.

    loky writes it into the message only, as `SIGKILL(-9)` or `EXIT(3)`:
    `get_exitcodes_terminated_worker`, loky/backend/utils.py, loky 3.7.0.
    """
    code = re.search(r"\((-?\d+)\)", str(error))
    return int(code.group(1)) if code else UNKNOWN_EXIT_CODE


def let_workers_grow() -> None:
    """Keep loky from ending a worker that has grown by 300 MB; to be called in the worker.

    `_MAX_MEMORY_LEAK_SIZE`, loky/process_executor.py, loky 3.7.0. The environment variable
    `LOKY_MAX_MEMORY_LEAK_SIZE` would be passed on to the user's own loky pools in the worker.
    """
    from loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = float("inf")
