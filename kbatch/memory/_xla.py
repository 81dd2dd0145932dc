"""XLA's buffer assignment: the flags that make XLA write it to disk."""

from __future__ import annotations

import os

DUMP = "KBATCH_XLA_DUMP"
TOO_LARGE = 1 << 60  # bytes of a step that could not be compiled for want of memory


def flags(folder: str) -> dict[str, str]:
    """Environment variables that make XLA write the buffers of train steps to a folder."""
    own = os.environ.get("XLA_FLAGS", "")
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    steps_only = "--xla_dump_hlo_module_re=.*train_step.*"
    return {
        DUMP: folder,
        "XLA_FLAGS": f"{own} {dump} {steps_only}".strip(),
    }
