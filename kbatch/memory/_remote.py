"""Remote functions: what a parent calls in a worker, named here so that the parent imports no TensorFlow."""

from __future__ import annotations

import os

from kbatch.memory._probe import Facts, Probe, Refusal
from kbatch.memory._workload import Subject
from kbatch.tracing.size import Moment

DUMP = "KBATCH_XLA_DUMP"
TOO_LARGE = 1 << 60  # bytes of a step that could not be compiled for want of memory


def flags(folder: str) -> dict[str, str]:
    """Environment variables that make XLA write down the buffer assignment of the step that `compiled_bytes` compiles."""
    own = os.environ.get("XLA_FLAGS", "")
    return {DUMP: folder, "XLA_FLAGS": f"{own} --xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.*".strip()}


def prepare() -> None:
    """Import what the other functions need."""
    from kbatch.memory import session  # noqa: F401


def begin(subject: Subject, limit_bytes: int | None) -> Facts | Refusal:
    """See `_worker.begin`."""
    from kbatch.memory import _worker

    return _worker.begin(subject, limit_bytes)


def probe(batch_size: int, steps: int) -> Probe | Refusal:
    """See `_worker.probe`."""
    from kbatch.memory import _worker

    return _worker.probe(batch_size, steps)


def confirm(batch_size: int, steps: int, validation_batch_size: int) -> Probe | Refusal:
    """See `_worker.confirm`."""
    from kbatch.memory import _worker

    return _worker.confirm(batch_size, steps, validation_batch_size)


def moments() -> list[Moment] | Refusal:
    """See `_traces.moments`."""
    from kbatch.memory import _traces

    return _traces.moments()


def digest() -> str | Refusal:
    """See `_traces.digest`."""
    from kbatch.memory import _traces

    return _traces.digest()


def compiled_bytes(batch_size: int) -> int | Refusal:
    """See `_traces.compiled_bytes`."""
    from kbatch.memory import _traces

    return _traces.compiled_bytes(batch_size)


def heaviest(augmentations: tuple[str, ...]) -> str:
    """The augmentation pipeline with the most layers."""
    from kbatch.data import augmentation

    return max(augmentations, key=lambda name: len(augmentation.layers(name)))
