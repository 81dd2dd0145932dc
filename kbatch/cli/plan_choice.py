"""The choice between plans of recomputation, under a memory limit or without one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbatch import text_table
from kbatch.errors import MemoryLimitError
from kbatch.recompute._plan import Plan, megabytes

CAUTION = (
    "predicted; without XLA measured peaks were 0.8 to 1.2 times as high, more where the weights "
    "outweigh the activations: the optimizer's own step is not counted "
    "(kbatch max-batch --recompute measures)"
)
SHARES = (
    "budget:0.50 keeps half of what the plain model keeps from the forward to the backward pass"
)
LARGEST_BATCH = 1 << 20  # examples; larger batches are not looked for


@dataclass(frozen=True)
class Choice:
    """The plans of a front, and the memory that the device has for them.

    Attributes:
        plans: Plans at the batch size of the command, the fastest first.
        resized: Function from a plan and a batch size to the plan with the bytes of that size.
        static_bytes: Integer, bytes of weights and optimizer.
        limit_bytes: Integer, or `None` if there is no limit.
        fixed_batch_size: Integer, the only batch size that the model takes, or `None` if it takes
            any.
    """

    plans: Sequence[Plan]
    resized: Callable[[Plan, int], Plan]
    static_bytes: int
    limit_bytes: int | None
    fixed_batch_size: int | None = None

    @property
    def room_bytes(self) -> int | None:
        """Bytes of the limit that weights and optimizer leave; `None` without a limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.static_bytes

    def needed_bytes(self, plan: Plan) -> float:
        """Bytes of a training by a plan, as the allocator hands them out."""
        return self.static_bytes + plan.peak_bytes

    def largest(self, plan: Plan) -> int | None:
        """The largest batch that is predicted to fit; `None` without a limit, 0 if none fits."""
        if self.limit_bytes is None:
            return None
        if self.fixed_batch_size is not None:
            return self.fixed_batch_size if self.needed_bytes(plan) <= self.limit_bytes else 0
        sizes = range(1, LARGEST_BATCH + 1)
        return bisect.bisect_right(
            sizes,
            float(self.limit_bytes),
            key=lambda size: self.needed_bytes(self.resized(plan, size)),
        )

    @property
    def chosen(self) -> Plan:
        """The fastest plan that fits, or without a limit the one of the lowest peak.

        Raises:
            MemoryLimitError: If none fits.
        """
        if self.limit_bytes is None:
            return self.plans[-1]
        for plan in self.plans:
            if self.needed_bytes(plan) <= self.limit_bytes:
                return plan
        smallest = self.plans[-1]
        batch = self.largest(smallest)
        remedy = "Raise the limit, or take a smaller model"
        if batch:
            remedy = f"Take a batch of {batch}, and accumulate"
        raise MemoryLimitError(
            f"Some plan must fit into {megabytes(self.limit_bytes)} at batch {smallest.batch_size}",
            f"{megabytes(self.needed_bytes(smallest))} at least",
            remedy,
        )


def table(choice: Choice) -> str:
    """Return the front as a table, one row per plan, the fastest first."""
    limited = choice.limit_bytes is not None
    headings = ["plan", "segments", "run again", "kept MB", "peak MB", "more time"]
    rows = []
    for plan in choice.plans:
        row = [
            name_of(plan, choice.plans[0]),
            len(plan.segments),
            sum(segment.operations for segment in plan.segments if segment.recompute),
            f"{plan.kept_bytes / 1e6:,.1f}",
            f"{plan.peak_bytes / 1e6:,.1f}",
            f"{plan.extra_seconds_ratio:.1%}",
        ]
        rows.append([*row, choice.largest(plan)] if limited else row)
    if limited:
        headings.append("largest batch")
    static = f"weights and optimizer take {choice.static_bytes / 1e6:,.1f} MB"
    if choice.limit_bytes is not None:
        static += f" of {megabytes(choice.limit_bytes)}"
    shares = [SHARES] if any(plan.strategy == "budget" for plan in choice.plans) else []
    notes = [f"{static}, in addition to the peak", *shares, CAUTION]
    return "\n".join([text_table.columns(headings, rows, left=("plan",)), *notes])


def name_of(plan: Plan, plain: Plan) -> str:
    """Return a plan's strategy; of a budget with the share of the plain model's bytes it keeps."""
    if plan.strategy == "budget":
        return f"budget:{plan.kept_bytes / plain.kept_bytes:.2f}"
    return plan.strategy
