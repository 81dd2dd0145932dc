"""Planner: which activations of a model to keep, by strategy and byte limit."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recipe_words import STRATEGY_WORDS, Strategy, whole_number
from kbatch.recompute import _solver
from kbatch.recompute._apply import apply
from kbatch.recompute._costs import ModelCosts, costs_of
from kbatch.recompute._exactness import Uncut, check_repeatable, crossed
from kbatch.recompute._loss import loss_bytes
from kbatch.recompute._op_graph import OpGraph, SignatureCache, class_names, functional_of
from kbatch.recompute._plan import WORTHWHILE, Plan, PlannedSegment, Span, megabytes, spans_of
from kbatch.recompute._solver import Budget, Predictor, whole

STRATEGIES = ("none", "minimal", "budget", "sqrt", "stages", "blocks", "segments", "manual")


@dataclass(frozen=True)
class PlanOptions:
    """A strategy and its arguments, as `plan` takes them."""

    strategy: str  # one of `STRATEGIES`
    # Largest peak for `"budget"`
    peak_bytes: float | None = None
    # Largest share of the plain model's kept bytes for `"budget"`
    kept_share: float | None = None
    layers: Sequence[str] = ()  # names of the layers to cut after for `"manual"`
    # Number of equal segments for `"segments"`
    count: int | None = None

    def check(self) -> None:
        """Refuse options that make no sense."""
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


def segments_of(predictor: Predictor, options: PlanOptions) -> Sequence[Span]:
    """The segments that a strategy cuts a model into.

    Where cuts that keep the order of each sum save next to nothing, they may also lie between
    branches that share a weight, or that lead to a layer's own loss; for a budget only where no
    others meet it.
    """
    spans = _segments(predictor, options)
    others = predictor.reordering
    if options.strategy in ("none", "manual", "budget") or len(others.cuts) == len(predictor.cuts):
        return spans
    plain, peak = (predictor.predict(each).peak_bytes for each in (whole(predictor.graph), spans))
    if peak <= (1 - WORTHWHILE) * plain:
        return spans
    reordered = _segments(others, options)
    return reordered if others.predict(reordered).peak_bytes < (1 - WORTHWHILE) * peak else spans


def _segments(predictor: Predictor, options: PlanOptions) -> Sequence[Span]:
    """The segments that a strategy cuts a model into, at the cuts that a predictor allows."""
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
    if options.strategy == "blocks":
        return _solver.of_cuts(_block_cuts(predictor))
    if options.strategy == "manual":
        cuts = _cuts_after(graph, options.layers)
        predictor.cut_points.check(cuts, predictor.cut_points.uncut)
        return _solver.of_cuts(cuts)
    return _within_budget(predictor, options)


def _within_budget(predictor: Predictor, options: PlanOptions) -> list[Span]:
    """The segments of the least extra work within the budget."""
    plain = predictor.predict(whole(predictor.graph))
    kept_share = options.kept_share or float("inf")
    budget = Budget(options.peak_bytes or float("inf"), kept_share * plain.kept_bytes)
    spans = _solver.cheapest(predictor, budget)
    if spans is None:
        spans = _solver.cheapest(predictor.reordering, budget)
    if spans is None:
        least = predictor.predict(segments_of(predictor, PlanOptions("minimal")))
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

    Only positions with a single live value count.
    """
    graph = predictor.graph
    narrow = _narrow(predictor)
    sizes = [predictor.bytes_of(graph.live(position)) for position in narrow]
    blocks = set(_block_cuts(predictor))
    changes = [
        position
        for position, size, after in zip(narrow, sizes, sizes[1:], strict=False)
        if size != after and position in blocks
    ]
    return [0, *changes, len(graph.nodes)] if len(changes) > 1 else _block_cuts(predictor)


def _block_cuts(predictor: Predictor) -> list[int]:
    """Cuts after each block: where an operation reads several values and one is alive.

    Without such operations, wherever a single value is alive.
    """
    nodes, narrow = predictor.graph.nodes, _narrow(predictor)
    blocks = [position for position in narrow if len(nodes[position - 1].reads) > 1]
    return [0, *(blocks or narrow), len(nodes)]


def _narrow(predictor: Predictor) -> list[int]:
    """The cut points inside of the model where a single value is alive."""
    live = predictor.graph.live
    return [position for position in predictor.cuts[1:-1] if len(live(position)) == 1]


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


# Budgets that `front` tries, as shares of the plain model's peak. Chosen by hand, not tuned.
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2)

_costs_by_kind: SignatureCache[ModelCosts] = SignatureCache()


@in_one_frame
def plan(
    model: keras.Model,
    batch_size: int,
    strategy: str = "minimal",
    *,
    peak_bytes: float | None = None,
    kept_share: float | None = None,
    layers: Sequence[str] = (),
    count: int | None = None,
    x: Any = None,
) -> Plan:
    """Plan which segments of a model to recompute in the backward pass.

    Use it before `apply`, to train with less memory at the price of some time. Each operation is
    traced once, forward and backward, under the model's own dtype policy. Nothing is executed, and
    a model that is built like one before is not traced again.

    The segments of `"minimal"` and `"budget"` are found by dynamic programming over the cut points
    (of the kind of Kusumoto et al., NeurIPS 2019).

    Args:
        model: `keras.Model`, Functional or Sequential, built.
        batch_size: Integer, examples per step. The plan's bytes and the budgets are for this size.
        strategy: Where to cut. Defaults to `"minimal"`.
            `"minimal"`: for the lowest peak.
            `"budget"`: for the least extra time within `peak_bytes` or `kept_share`.
            `"sqrt"`: into as many equal segments as the square root of the number of operations
            (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
            `"segments"`: into `count` equal segments.
            `"stages"`: where the size of the tensors changes, else as `"blocks"`.
            `"blocks"`: after each block of layers, as the end of a residual connection.
            `"manual"`: after `layers`.
            `"none"`: nowhere.
        peak_bytes: Float, largest peak of a step in bytes, not counting weights and optimizer, for
            `"budget"`. Optional.
        kept_share: Float between 0 and 1, largest share of the plain model's kept bytes, for
            `"budget"`. Optional.
        layers: List of names of layers to cut after, for `"manual"`. A layer of a nested model is
            named `"nested/layer"`. Optional.
        count: Integer of at least 2, number of segments for `"segments"`. Optional.
        x: Inputs of one batch, as the model is called on them. They tell the lengths of inputs such
            as `(None,)`: pass the longest. The plan can then be applied at any length. Optional.

    Returns:
        The `Plan`. `print(plan)` lists its segments.

    Raises:
        RecomputeError: If the model hides its graph, has inputs of an unknown size, or does
            something that cannot be repeated. Also if an argument makes no sense, if a cut after
            `layers` would change the order in which a gradient is summed, or if no plan meets
            the budget.

    Example:
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> plan = recompute.plan(model, batch_size=16, strategy="sqrt")
    >>> sum(segment.recompute for segment in plan.segments)
    2
    >>> recompute.apply(model, plan)
    """
    options = PlanOptions(strategy, peak_bytes, kept_share, layers, count)
    options.check()
    predictor = _predictor(model, batch_size, x)
    result = _plan(predictor, strategy, segments_of(predictor, options))
    _check_repeatable(predictor.graph, [result])
    return result


def plan_for(
    model: keras.Model,
    strategy: Strategy,
    planned_batch_size: int,
    batch_size: int,
    x: Any = None,
) -> Plan:
    """Plan a model for one batch size, and give the plan's bytes for another."""
    options = PlanOptions(strategy.name, kept_share=strategy.kept_share, count=strategy.count)
    options.check()
    predictor = _predictor(model, planned_batch_size, x)
    resized = Predictor(predictor.graph, predictor.costs, batch_size, loss=predictor.loss)
    result = _plan(resized, strategy.name, segments_of(predictor, options))
    _check_repeatable(predictor.graph, [result])
    return result


@in_one_frame
def front(model: keras.Model, batch_size: int, x: Any = None) -> list[Plan]:
    """The plans that no other beats in both peak and time, from the plain model to the lowest peak.

    Use it to choose how much time to give for how much memory.

    Args:
        model: `keras.Model`, Functional or Sequential, built.
        batch_size: Integer, examples per step.
        x: Inputs of one batch; see `plan`. Optional.

    Returns:
        List of `Plan`, the fastest first.

    Raises:
        RecomputeError: If the model hides its graph, has inputs of an unknown size, or does
            something that cannot be repeated.

    Example:
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> plans = recompute.front(model, batch_size=16)
    >>> plans[0].strategy, plans[0].extra_seconds_ratio
    ('none', 0.0)
    """
    predictor = _predictor(model, batch_size, x)
    plain = _plan(predictor, "none", whole(predictor.graph))
    lowest = _plan(predictor, "minimal", segments_of(predictor, PlanOptions("minimal")))
    plans = [plain, lowest]
    if lowest.reordered:
        predictor = predictor.reordering
    plain_peak = predictor.predict(whole(predictor.graph)).peak_bytes
    for share in SHARES:
        spans = _solver.cheapest(predictor, Budget(peak_bytes=share * plain_peak))
        if spans:
            plans.append(_plan(predictor, "budget", spans))
    _check_repeatable(predictor.graph, plans)
    plans.sort(key=lambda each: (each.extra_seconds_ratio, each.peak_bytes))
    best: list[Plan] = []
    for each in plans:
        if not best or each.peak_bytes < best[-1].peak_bytes:
            best.append(each)
    return best


def resizer(model: keras.Model) -> Callable[[Plan, int], Plan]:
    """A function that takes a plan of this model and a batch size, and gives the plan its bytes."""
    graph = OpGraph(model)
    costs = _costs(graph)
    loss = loss_bytes(model, costs.outputs)

    def resize(plan: Plan, batch_size: int) -> Plan:
        predictor = Predictor(graph, costs, batch_size, loss=loss)
        return _plan(predictor, plan.strategy, spans_of(plan))

    return resize


def _predictor(model: keras.Model, batch_size: int, x: Any = None) -> Predictor:
    """The predictor of a model at a batch size, both checked."""
    if whole_number(batch_size) is None:
        raise RecomputeError(
            "`batch_size` must be a whole number of at least 1",
            repr(batch_size),
            "Pass the examples of one step",
        )
    graph = OpGraph(model, x)
    for tensor, shape in zip(graph.functional.inputs, graph.shapes, strict=True):
        if None in shape[1:]:
            raise RecomputeError(
                "Inputs must be of a known size except for the batch, or bytes are not known",
                f"{tensor.name!r} of shape {shape}",
                "Pass x=, one batch of the longest inputs, in Python, or build the model for their "
                "size; the plan can be applied at any",
            )
        if tensor.shape[0] not in (None, batch_size):
            raise RecomputeError(
                "`batch_size` must be the batch size of the model's inputs, where they have one",
                f"{batch_size}, where {tensor.name!r} has {tensor.shape[0]}",
                f"Pass batch_size={tensor.shape[0]}",
            )
    costs = _costs(graph)
    return Predictor(graph, costs, batch_size, loss=loss_bytes(model, costs.outputs))


def _costs(graph: OpGraph) -> ModelCosts:
    """The costs of a model's operations; traced once for each kind of model."""
    return _costs_by_kind.get(graph, lambda: costs_of(graph))


def _check_repeatable(graph: OpGraph, plans: list[Plan]) -> None:
    """Refuse plans that recompute where the model does something that cannot be repeated."""
    if any(plan.recomputes for plan in plans):
        check_repeatable(graph)


def _plan(predictor: Predictor, strategy: str, spans: Sequence[Span]) -> Plan:
    """The plan that cuts a model into these segments."""
    nodes, prediction = predictor.graph.nodes, predictor.predict(spans)
    segments = tuple(
        PlannedSegment(
            first=nodes[start].name,
            last=nodes[stop - 1].name,
            operations=stop - start,
            recompute=recompute and predictor.trains(start, stop),
        )
        for start, stop, recompute in spans
    )
    plain = predictor.predict(whole(predictor.graph))
    cuts = [start for start, _, _ in spans][1:]
    return Plan(
        strategy=strategy,
        segments=segments,
        batch_size=predictor.batch_size,
        kept_bytes=int(prediction.kept_bytes),
        peak_bytes=int(prediction.peak_bytes),
        extra_seconds_ratio=prediction.extra_work,
        plain_peak_bytes=int(plain.peak_bytes),
        uncut=_uncut(predictor, plain.kept_bytes),
        reordered=_reordered(crossed(cuts, predictor.cut_points.uncut)),
        lower_bound=any(_needs_more(node.operation) for node in nodes),
    )


def _needs_more(operation: Any) -> bool:
    """Whether an operation is or holds a convolution or a recurrent layer."""
    return any("Conv" in name or name == "RNN" for name in class_names(operation))


def _uncut(predictor: Predictor, kept_bytes: float) -> str:
    """Why no cut can lie where most of the bytes are kept; empty where that is not so."""
    nodes = predictor.graph.nodes
    inside = [cost.internal.at(predictor.batch_size) for cost in predictor.costs.nodes]
    largest = max(range(len(inside)), key=inside.__getitem__, default=None)
    if largest is not None and inside[largest] > kept_bytes / 2:
        return f"{nodes[largest].name} keeps most of it, and is not cut inside"
    ranges = predictor.cut_points.uncut
    if not ranges or _width(_widest(ranges)) <= len(nodes) / 2:
        return ""
    return (
        f"no cut may lie between branches that {_widest(ranges).reason}, or its gradient would be "
        "summed in another order"
    )


def _reordered(ranges: Sequence[Uncut]) -> str:
    """Which gradients are summed in another order."""
    if not ranges:
        return ""
    others = f", and {len(ranges) - 1} more" if len(ranges) > 1 else ""
    return f"branches that {_widest(ranges).reason}{others}, send their gradients in another order"


def _widest(ranges: Sequence[Uncut]) -> Uncut:
    return max(ranges, key=_width)


def _width(uncut: Uncut) -> int:
    return uncut.stop - uncut.first


# Batch size to plan for, whatever the recipe's: with the same cuts at every size, the bytes that a
# plan keeps are linear in the batch, and one probe tells of all sizes. Chosen by hand.
PLANNED_BATCH_SIZE = 32


def apply_recipe(
    model: keras.Model, recompute: str, batch_size: int = PLANNED_BATCH_SIZE, x: Any = None
) -> None:
    """Plan a model by a recipe's strategy and apply the plan; `"none"` leaves the model as it is.

    Args:
        model: `keras.Model`, built.
        recompute: Text such as `"minimal"` or `"budget:0.5"`.
        batch_size: Integer, examples per forward and backward pass, for the plan's bytes. Defaults
            to `32`.
        x: Inputs of a batch, for the lengths that the model leaves open. Optional.

    Raises:
        RecomputeError: If the text is not a strategy, or the model cannot be cut.
    """
    strategy = Strategy.parse(recompute)
    if strategy is None:
        raise RecomputeError(
            f"`recompute` must be {STRATEGY_WORDS}", recompute, "Pass one of these"
        )
    if strategy.name == "none":
        return
    fixed = functional_of(model).inputs[0].shape[0]
    planned = fixed or PLANNED_BATCH_SIZE
    apply(model, plan_for(model, strategy, planned, fixed or batch_size, x))
