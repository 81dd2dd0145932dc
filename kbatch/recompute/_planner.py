"""Planner: the plan of a model by a strategy, and the front of plans from fastest to smallest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recipe_fields import whole_number
from kbatch.recompute import _repeatable, _solver
from kbatch.recompute._cost_model import Predictor
from kbatch.recompute._op_costs import ModelCosts, costs_of
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, PlannedSegment, Span, spans_of
from kbatch.recompute._signature import SignatureCache
from kbatch.recompute._solver import Budget
from kbatch.recompute._strategies import Options, segments_of, whole
from kbatch.recompute_strategy import Strategy

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
            `"stages"`: where the size of the tensors changes, else where a block of layers repeats.
            `"manual"`: after `layers`.
            `"none"`: nowhere.
        peak_bytes: Float, largest peak of a step in bytes, not counting weights and optimizer, for
            `"budget"`. Optional.
        kept_share: Float between 0 and 1, largest share of the plain model's kept bytes, for
            `"budget"`. Optional.
        layers: List of names of layers to cut after, for `"manual"`. A layer of a nested model is
            named `"nested/layer"`. Optional.
        count: Integer of at least 2, number of segments for `"segments"`. Optional.

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
    options = Options(strategy, peak_bytes, kept_share, layers, count)
    options.check()
    predictor = _predictor(model, batch_size)
    result = _plan(predictor, strategy, segments_of(predictor, options))
    _check_repeatable(predictor.graph, [result])
    return result


def plan_for(
    model: keras.Model,
    strategy: Strategy,
    planned_batch_size: int,
    batch_size: int,
) -> Plan:
    """Plan a model for one batch size, and give the plan's bytes for another.

    Args:
        model: As for `plan`.
        strategy: `Strategy` of a recipe.
        planned_batch_size: Integer, the batch size to plan for.
        batch_size: Integer, the batch size of the plan's bytes.

    Raises:
        RecomputeError: As for `plan`.
    """
    options = Options(strategy.name, kept_share=strategy.kept_share, count=strategy.count)
    options.check()
    predictor = _predictor(model, planned_batch_size)
    resized = Predictor(predictor.graph, predictor.costs, batch_size)
    result = _plan(resized, strategy.name, segments_of(predictor, options))
    _check_repeatable(predictor.graph, [result])
    return result


@in_one_frame
def front(model: keras.Model, batch_size: int) -> list[Plan]:
    """The plans that no other beats in both peak and time, from the plain model to the lowest peak.

    Use it to choose how much time to give for how much memory.

    Args:
        model: `keras.Model`, Functional or Sequential, built.
        batch_size: Integer, examples per step.

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
    predictor = _predictor(model, batch_size)
    plain = _plan(predictor, "none", whole(predictor.graph))
    plans = [plain, _plan(predictor, "minimal", _solver.lowest(predictor))]
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
    """A function that takes a plan of this model and a batch size, and gives the plan its bytes.

    Args:
        model: `keras.Model`, Functional or Sequential, built. It is traced once, here.
    """
    graph = OpGraph(model)
    costs = _costs(graph)

    def resize(plan: Plan, batch_size: int) -> Plan:
        return _plan(Predictor(graph, costs, batch_size), plan.strategy, spans_of(plan))

    return resize


def _predictor(model: keras.Model, batch_size: int) -> Predictor:
    """The predictor of a model at a batch size, both checked."""
    if whole_number(batch_size) is None:
        raise RecomputeError(
            "`batch_size` must be a whole number of at least 1",
            repr(batch_size),
            "Pass the examples of one step",
        )
    graph = OpGraph(model)
    for tensor in graph.functional.inputs:
        if None in tensor.shape[1:]:
            raise RecomputeError(
                "Inputs must be of a known size except for the batch, or bytes are not known",
                f"{tensor.name!r} of shape {tuple(tensor.shape)}",
                "Build the model for the size that it trains with, and plan that one; the plan "
                "can be applied to this model too",
            )
        if tensor.shape[0] not in (None, batch_size):
            raise RecomputeError(
                "`batch_size` must be the batch size of the model's inputs, where they have one",
                f"{batch_size}, where {tensor.name!r} has {tensor.shape[0]}",
                f"Pass batch_size={tensor.shape[0]}",
            )
    return Predictor(graph, _costs(graph), batch_size)


def _costs(graph: OpGraph) -> ModelCosts:
    """The costs of a model's operations; traced once for each kind of model."""
    return _costs_by_kind.get(graph, lambda: costs_of(graph))


def _check_repeatable(graph: OpGraph, plans: list[Plan]) -> None:
    """Refuse plans that recompute where the model does something that cannot be repeated."""
    if any(plan.recomputes for plan in plans):
        _repeatable.check(graph)


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
    return Plan(
        strategy=strategy,
        segments=segments,
        batch_size=predictor.batch_size,
        kept_bytes=int(prediction.kept_bytes),
        peak_bytes=int(prediction.peak_bytes),
        extra_seconds_ratio=prediction.extra_work,
    )
