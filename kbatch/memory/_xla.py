"""XLA's buffer assignment: the flags under which XLA writes it down, known to both sides of a worker."""

from __future__ import annotations

import os

DUMP = "KBATCH_XLA_DUMP"
TOO_LARGE = 1 << 60  # bytes of a step that could not be compiled for want of memory


def flags(folder: str) -> dict[str, str]:
    """Environment variables that make XLA write down the buffer assignment of the step that `_traces.compiled_bytes` compiles."""
    own = os.environ.get("XLA_FLAGS", "")
    return {
        DUMP: folder,
        "XLA_FLAGS": f"{own} --xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.*".strip(),
    }
