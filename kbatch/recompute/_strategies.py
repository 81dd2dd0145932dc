"""Strategies: from the name of a strategy to the segments of a model."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.errors import RecomputeError
from kbatch.recipe_fields import whole_number
from kbatch.recompute import _solver
from kbatch.recompute._cost_model import Predictor
from kbatch.recompute._cut_points import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Span, megabytes
from kbatch.recompute._solver import Budget

STRATEGIES = ("none", "minimal", "budget", "sqrt", "stages", "segments", "manual")


@dataclass(frozen=True)
class Options:
    """A strategy and its arguments, as `plan` takes them.

    Attributes:
        strategy: One of `STRATEGIES`.
        peak_bytes: Float, largest peak for `"budget"`. Optional.
        kept_share: Float, largest share of the plain model's kept bytes for `"budget"`. Optional.
        layers: Names of the layers to cut after for `"manual"`.
        count: Integer, number of equal segments for `"segments"`. Optional.
    """

    strategy: str
    peak_bytes: float | None = None
    kept_share: float | None = None
    layers: Sequence[str] = ()
    count: int | None = None

    def check(self) -> None:
        """Refuse options that make no sense.

        Raises:
            RecomputeError: With the option to pass instead.
        """
        self._check_name()
        self._check_budget()
        self._check_layers()
        self._check_count()

    def _check_name(self) -> None:
        if self.strategy in STRATEGIES:
            return
        share = str(self.strategy).partition("budget:")[2]  # the form that recipes use
        do = "Pass one of these"
        if share[:1].isdigit():
            do = f'Pass strategy="budget", kept_share={share}'
        raise RecomputeError(
            f"`strategy` must be one of {', '.join(STRATEGIES)}", repr(self.strategy), do
        )

    def _check_budget(self) -> None:
        given = [value for value in (self.peak_bytes, self.kept_share) if value is not None]
        if not all(_is_positive(value) for value in given):
            raise RecomputeError(
                "A budget must be a number above 0",
                self.budget_text(),
                "Pass bytes, or a share such as 0.5",
            )
        if self.kept_share is not None and self.kept_share > 1:
            raise RecomputeError(
                "`kept_share` must be at most 1, the plain model's share",
                self.kept_share,
                "Pass a share such as 0.5",
            )
        if self.strategy == "budget" and not given:
            raise RecomputeError(
                'strategy="budget" must come with a budget',
                "neither peak_bytes nor kept_share",
                "Pass a budget, such as kept_share=0.5",
            )
        if self.strategy != "budget" and given:
            raise RecomputeError(
                'A budget must come with strategy="budget"',
                f"strategy={self.strategy!r}",
                "Pass that strategy, or leave the budget out",
            )

    def _check_layers(self) -> None:
        if isinstance(self.layers, str):
            raise RecomputeError(
                "`layers` must be a list of names",
                repr(self.layers),
                f"Pass layers=[{self.layers!r}]",
            )
        if (self.strategy == "manual") != bool(self.layers):
            raise RecomputeError(
                'strategy="manual" must come with `layers`, and no other strategy may',
                self.strategy,
                'Pass strategy="manual" and layers=[...] together',
            )

    def _check_count(self) -> None:
        if (self.strategy == "segments") != (self.count is not None):
            raise RecomputeError(
                'strategy="segments" must come with `count`, and no other strategy may',
                f"strategy={self.strategy!r}, count={self.count!r}",
                'Pass strategy="segments" and count=4 together',
            )
        if self.count is not None and whole_number(self.count, least=2) is None:
            raise RecomputeError(
                "`count` must be a whole number of at least 2", repr(self.count), "Pass 4, say"
            )

    def budget_text(self) -> str:
        """The budget as it was passed, for error messages."""
        given = {"peak_bytes": self.peak_bytes, "kept_share": self.kept_share}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def segments_of(predictor: Predictor, options: Options) -> Sequence[Span]:
    """The segments that a strategy cuts a model into.

    Raises:
        RecomputeError: If no cuts meet the budget, or `layers` names a wrong cut.
    """
    graph = predictor.graph
    if options.strategy == "none":
        return whole(graph)
    if options.strategy == "minimal":
        return _solver.lowest(predictor)
    if options.strategy == "sqrt":
        return _solver.uniform(predictor, round(len(graph.nodes) ** 0.5))
    if options.strategy == "segments":
        return _solver.uniform(predictor, options.count or 2)
    if options.strategy == "stages":
        return _solver.of_cuts(_stage_cuts(predictor))
    if options.strategy == "manual":
        cuts = _cuts_after(graph, options.layers)
        CutPoints(graph, predictor.costs.loss_positions).check(cuts)
        return _solver.of_cuts(cuts)
    return _within_budget(predictor, options)


def whole(graph: OpGraph) -> list[Span]:
    """The plain model as one segment."""
    return [Span(0, len(graph.nodes), False)]


def _within_budget(predictor: Predictor, options: Options) -> list[Span]:
    """The segments of the least extra work within the budget."""
    plain = predictor.predict(whole(predictor.graph))
    kept_share = options.kept_share or float("inf")
    budget = Budget(options.peak_bytes or float("inf"), kept_share * plain.kept_bytes)
    spans = _solver.cheapest(predictor, budget)
    if spans is None:
        least = predictor.predict(_solver.lowest(predictor))
        do = "Raise the budget, or take a smaller batch"
        if options.peak_bytes is None:
            do = "Raise the budget"
        raise RecomputeError(
            "Some plan must meet the budget",
            f"{options.budget_text()}, where the lowest peak is {megabytes(int(least.peak_bytes))} "
            f"and keeps {megabytes(int(least.kept_bytes))}",
            do,
        )
    return spans


def _stage_cuts(predictor: Predictor) -> list[int]:
    """Cuts where the size of the tensors changes, else after each repeated block of layers.

    Only positions with a single live value count. The end of a residual block is one whose
    operation reads several values.
    """
    graph = predictor.graph
    narrow = [position for position in predictor.cuts[1:-1] if len(graph.live(position)) == 1]
    sizes = [predictor.bytes_of(graph.live(position)) for position in narrow]
    blocks = [position for position in narrow if len(graph.nodes[position - 1].reads) > 1]
    changes = [
        position
        for position, size, after in zip(narrow, sizes, sizes[1:], strict=False)
        if size != after and position in blocks
    ]
    inner = changes if len(changes) > 1 else blocks or narrow
    return [0, *inner, len(graph.nodes)]


def _cuts_after(graph: OpGraph, layers: Sequence[str]) -> list[int]:
    """Cuts after the layers of these names."""
    positions = {node.name: position for position, node in enumerate(graph.nodes, 1)}
    missing = [name for name in layers if name not in positions]
    if missing:
        nested = [name for name in positions if name.rpartition("/")[2] in missing]
        names = ", ".join(nested[:5] or list(positions)[:5])
        raise RecomputeError(
            "`layers` must be names of this model's layers", missing, f"Pass names such as {names}"
        )
    return sorted({0, *(positions[name] for name in layers), len(graph.nodes)})


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and value > 0
