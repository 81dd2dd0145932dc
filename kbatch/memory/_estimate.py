"""Estimate: bytes of one train step by part, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbatch import text_table
from kbatch.device import gpu_in_use
from kbatch.memory._find import check_size, pipelines
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload, sample_of
from kbatch.recipe import Recipe
from kbatch.tracing.size import ALLOCATOR_SLACK


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
    """

    batch_size: int
    weights: int
    optimizer_slots: int
    gradients: int
    activations: int
    workspace: int

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
        return f"{table}\nat batch {self.batch_size}"


def estimate(
    build: Callable[..., Any],
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    batch_size: int | None = None,
    *,
    loss: Any = None,
    metrics: Any = None,
    seed: int = 0,
) -> Estimate:
    """Bytes that a train step needs at a batch size, by part, without running it.

    Use it to see where memory goes. Without XLA, one train step is traced and the liveness of its
    tensors followed; what kernels take for themselves shows in no trace, so that it is a guess for
    small batches and small convolution nets. With `jit_compile`, XLA compiles the step and tells
    its buffers exactly, but not which are activations: what grows with the batch counts as such.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: Array, nested structure of arrays, `tf.data.Dataset` of examples or of batches,
            `keras.utils.PyDataset`, or the shape of one example. Defaults to the shape of the
            model's `keras.Input`.
        y: Labels, for arrays. With shapes they are made to fit the loss. Optional.
        recipe: `Recipe` to train by. Defaults to `Recipe()`.
        batch_size: Integer, examples per forward and backward pass. Defaults to the recipe's
            micro-batch, or batch.
        loss: Loss, if `build` does not compile.
        metrics: Metrics, if `build` does not compile.
        seed: Integer, seed of the weights. Defaults to `0`.

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
    sample, _ = sample_of(x, y)
    gpu_in_use.check_free()
    with Prober(
        Workload(
            build, sample, recipe, loss, metrics, seed, pipelines=pipelines((recipe.augmentation,))
        ),
        None,
    ) as prober:
        facts = prober.facts()
        if recipe.jit_compile:
            whole, half = prober.compiled_bytes(size), prober.compiled_bytes(max(1, size // 2))
            growing = (whole - half) * size / (size - size // 2) if size > 1 else 0
            rest = max(0, whole - facts.static_bytes - int(growing))
            gradients = min(facts.gradient_bytes, rest)
            return Estimate(
                size,
                facts.weight_bytes,
                facts.slot_bytes,
                gradients,
                int(growing),
                rest - gradients,
            )
        moments = prober.moments()
        top = max(moments, key=lambda moment: moment.total.at(size))
        slack = (ALLOCATOR_SLACK - 1) * top.total.at(size)
        parts = (top.gradients.at(size), top.activations.at(size), top.workspace.at(size) + slack)
        return Estimate(size, facts.weight_bytes, facts.slot_bytes, *map(int, parts))
