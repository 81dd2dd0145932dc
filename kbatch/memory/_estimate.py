"""Estimate: bytes of one train step by part, without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch import text_table
from kbatch.errors import in_one_frame
from kbatch.memory._batch_sizes import check_size
from kbatch.memory._probe import ModelFacts
from kbatch.memory._prober import Prober
from kbatch.memory._workload import workload_of
from kbatch.model_spec import ModelArguments, ModelSpec, shows
from kbatch.recipe import Recipe
from kbatch.runtime import device
from kbatch.runtime.size import ALLOCATOR_SLACK, Moment

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Estimate:
    """Bytes that a train step needs at its highest moment, by part.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        weights: Bytes of the model's variables.
        optimizer_slots: Bytes of the optimizer's variables; those of gradient accumulation are
            among them.
        gradients: Bytes of the gradients of weights that are alive then.
        activations: Bytes of all else that grows with the batch, the batch itself among it.
        workspace: Bytes of what does not, and of what the allocator gives beyond what was asked
            for.
        shape: String, the shape of one example that the bytes are for, where examples differ or
            `shape=` was passed; else `""`.
    """

    batch_size: int
    weights: int
    optimizer_slots: int
    gradients: int
    activations: int
    workspace: int
    shape: str = ""

    @property
    def total(self) -> int:
        """All parts together."""
        return (
            self.weights + self.optimizer_slots + self.gradients + self.activations + self.workspace
        )

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "optimizer slots": self.optimizer_slots,
            "gradients": self.gradients,
            "activations": self.activations,
            "workspace": self.workspace,
            "total": self.total,
        }
        rows = [
            (name, f"{size / 1e6:,.1f} MB", f"{size / self.total:.0%}")
            for name, size in parts.items()
        ]
        table = text_table.columns(("part", "bytes", "share"), rows, left=("part",))
        of = f" and {self.shape}" if self.shape else ""
        return f"{table}\nat batch {self.batch_size}{of}"


@shows(ModelSpec)
@in_one_frame
def estimate(
    build: Callable[..., Any] | ModelSpec,
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    batch_size: int | None = None,
    *,
    shape: Any = None,
    **arguments: Unpack[ModelArguments],
) -> Estimate:
    """Estimate the bytes of a train step at a batch size, by part, without running it.

    Use it to see where memory goes. Without XLA, one train step is traced and the liveness of its
    tensors followed. No trace shows the workspace of kernels, so the estimate is rough for small
    batches and small convolution nets. With `jit_compile`, XLA compiles the step and tells its
    buffers exactly, but not which of them are activations: whatever grows with the batch counts as
    such.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, or a `kbatch.ModelSpec`.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        recipe: `Recipe` to train by. Defaults to `Recipe()`.
        batch_size: Integer, examples per forward and backward pass. Defaults to the recipe's
            micro-batch, or batch.
        shape: See `kbatch.find_max_batch`.
        **arguments: `loss`, `metrics`, `seed`, `values`, `declare`; see `kbatch.ModelSpec`.

    Returns:
        The `Estimate`; its `str()` is a table.

    Raises:
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    print(kbatch.memory.estimate(build, (224, 224, 3), batch_size=64))
    ```
    """
    recipe = recipe or Recipe()
    size = check_size("batch_size", batch_size) or recipe.examples_per_pass
    workload, _ = workload_of(ModelSpec.of(build, **arguments), x, y, recipe, shape)
    device.check_gpu_free()
    with Prober(workload, None) as prober:
        model = prober.facts()
        if recipe.jit_compile:
            whole, half = prober.compiled_bytes(size), prober.compiled_bytes(max(1, size // 2))
            found = _compiled(model, size, whole, half)
        else:
            found = _traced(model, size, prober.moments())
    return dataclasses.replace(found, shape=workload.at)


def _traced(model: ModelFacts, size: int, moments: list[Moment]) -> Estimate:
    """The estimate from the highest moment of a traced step."""
    top = max(moments, key=lambda moment: moment.total.at(size))
    slack = (ALLOCATOR_SLACK - 1) * top.total.at(size)
    return Estimate(
        size,
        model.weight_bytes,
        model.slot_bytes,
        int(top.gradients.at(size)),
        int(top.activations.at(size)),
        int(top.workspace.at(size) + slack),
    )


def _compiled(model: ModelFacts, size: int, whole: int, half: int) -> Estimate:
    """The estimate from XLA's bytes at a batch size, and at half of it."""
    growing = int((whole - half) * size / (size - size // 2)) if size > 1 else 0
    rest = max(0, whole - model.static_bytes - growing)
    gradients = min(model.gradient_bytes, rest)
    return Estimate(
        size, model.weight_bytes, model.slot_bytes, gradients, growing, rest - gradients
    )
