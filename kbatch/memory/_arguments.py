"""Arguments by name that the functions of this room share: the model's, and the worker's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.memory._probe import Probe
from kbatch.memory._prober import TIMEOUT_SECONDS
from kbatch.model_spec import ModelArguments, ModelSpec, check_names

if TYPE_CHECKING:
    pass


class FinderArguments(ModelArguments, total=False):
    """Arguments by name of `find_max_batch` and `max_batches`: the model's and the worker's."""

    timeout_seconds: float
    fresh: bool
    on_probe: Callable[[Probe], None] | None


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker is used.

    Attributes:
        timeout_seconds: Float, after which a probe counts as hung.
        fresh: Boolean, whether to measure again what was measured before.
        on_probe: Function called with every `Probe`, or `None`.
    """

    timeout_seconds: float = TIMEOUT_SECONDS
    fresh: bool = False
    on_probe: Callable[[Probe], None] | None = None


def parted(build: Any, arguments: FinderArguments) -> tuple[ModelSpec, WorkerOptions]:
    """Part arguments by name into those of the model and those of the worker."""
    names = {each.name for each in dataclasses.fields(WorkerOptions)}
    check_names(arguments, [*names, *ModelArguments.__annotations__])
    of_model = {name: value for name, value in arguments.items() if name not in names}
    of_worker = {name: value for name, value in arguments.items() if name in names}
    return ModelSpec.of(build, **of_model), WorkerOptions(**of_worker)  # type: ignore[arg-type]
