"""Planner: the plan of a model by a strategy, and the front of plans from the fastest to the smallest."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Sequence

import keras

from kbatch.errors import RecomputeError
from kbatch.recipe import whole_number
from kbatch.recompute import _repeatable, _solver
from kbatch.recompute._cost_model import Predictor, Stretch
from kbatch.recompute._cut_points import Ordering
from kbatch.recompute._op_costs import Costs, costs_of
from kbatch.recompute._op_graph import Chain
from kbatch.recompute._plan import Plan, PlannedSegment, megabytes
from kbatch.recompute._signature import signature
from kbatch.recompute._solver import Budget

STRATEGIES = ("none", "minimal", "budget", "sqrt", "stages", "manual")
# of the plain model's peak, tried for the front
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2)

_known: dict[Hashable, Costs] = {}  # by signature; no model is held by them


def plan(
    model: keras.Model,
    batch_size: int,
    strategy: str = "minimal",
    *,
    peak_bytes: float | None = None,
    kept_share: float | None = None,
    layers: Sequence[str] = (),
) -> Plan:
    """Where to cut a model so that its backward pass makes again what its forward pass did not keep.

    Use it before `apply`. Each operation is traced once forward and backward under the model's own
    policy; nothing is executed. The search is dynamic programming over the cuts with the bytes
    stored and the work done again as state.

    Args:
        model: `keras.Model`, Functional or Sequential, built.
        batch_size: Integer, examples per step for which bytes are given and budgets meant.
        strategy: `"minimal"` for the lowest peak; `"budget"` for the least extra time under
            `peak_bytes` or
            `kept_share`; `"sqrt"` for as many equal segments as the square root of the number of
            operations (Chen et al., 2016); `"stages"` for cuts where the size of the tensors
            changes, or else where a block of layers repeats;
            `"manual"` for cuts after `layers`; `"none"`. Defaults to `"minimal"`.
        peak_bytes: Float, the most bytes of a step beside weights and optimizer, for `"budget"`.
        kept_share: Float, the most kept bytes as a share of the plain model's, for `"budget"`.
        layers: Names of layers after which to cut, for `"manual"`. One in a nested model is named
            `"nested/layer"`.

    Returns:
        The `Plan`; its `str()` lists the segments.

    Raises:
        RecomputeError: If the model hides its graph, does something that cannot be done twice, or
            has inputs of an unknown size, an argument says nothing, a cut after `layers` would
            change the order in which a gradient is summed, or no plan meets the budget.

    Example:
    ```python
    plan = recompute.plan(model, batch_size=16)
    recompute.apply(model, plan)
    ```
    """
    _check(strategy, batch_size, peak_bytes, kept_share, layers)
    predictor = _predictor(_chain(model, batch_size), batch_size)
    return _vouched(
        predictor.chain,
        [_plan(predictor, strategy, _placed(predictor, strategy, peak_bytes, kept_share, layers))],
    )[0]


def plan_for(
    model: keras.Model,
    strategy: str,
    kept_share: float | None,
    planned_batch_size: int,
    batch_size: int,
) -> Plan:
    """The plan that `plan` finds for one batch size, with the bytes of another.

    Args:
        model: As for `plan`.
        strategy: As for `plan`, but `"manual"`.
        kept_share: As for `plan`.
        planned_batch_size: Integer, the batch size to plan for.
        batch_size: Integer, the one whose bytes the plan says.

    Raises:
        RecomputeError: As `plan`.
    """
    _check(strategy, planned_batch_size, None, kept_share, ())
    chain = _chain(model, planned_batch_size)
    predictor = _predictor(chain, planned_batch_size)
    stretches = _placed(predictor, strategy, None, kept_share, ())
    return _vouched(
        chain, [_plan(Predictor(chain, predictor.costs, batch_size), strategy, stretches)]
    )[0]


def front(model: keras.Model, batch_size: int) -> list[Plan]:
    """The plans of which none is beaten in both peak and time, from the plain model to the lowest peak.

    Use it to choose how much time to give for how much memory.

    Args:
        model: `keras.Model`, Functional or Sequential, built.
        batch_size: Integer, examples per step.

    Returns:
        List of `Plan`, the fastest first.

    Raises:
        RecomputeError: If the model hides its graph, does something that cannot be done twice, or
            has inputs of an unknown size.

    Example:
    ```python
    for plan in recompute.front(model, batch_size=16):
        print(f"{plan.peak_bytes / 1e6:.0f} MB, {plan.extra_seconds_ratio:.0%} more time")
    ```
    """
    _check("none", batch_size, None, None, ())
    predictor = _predictor(_chain(model, batch_size), batch_size)
    whole: list[Stretch] = [(0, len(predictor.chain.nodes), False)]
    plain = predictor.predict(whole)
    tried: list[tuple[str, list[Stretch] | None]] = [
        ("none", whole),
        ("minimal", _solver.lowest(predictor)),
    ]
    for share in SHARES:
        tried.append(
            ("budget", _solver.cheapest(predictor, Budget(peak_bytes=share * plain.peak_bytes)))
        )
    plans = _vouched(
        predictor.chain,
        [_plan(predictor, strategy, stretches) for strategy, stretches in tried if stretches],
    )
    plans.sort(key=lambda one: (one.extra_seconds_ratio, one.peak_bytes))
    found: list[Plan] = []
    for one in plans:
        if not found or one.peak_bytes < found[-1].peak_bytes:
            found.append(one)
    return found


def resizer(model: keras.Model) -> Callable[[Plan, int], Plan]:
    """A function from a plan of this model and a batch size to the same cuts with the bytes of that batch size.

    Args:
        model: `keras.Model`, Functional or Sequential, built; traced once here.
    """
    chain = Chain(model)
    costs = _costs(chain)
    return lambda plan, batch_size: _plan(
        Predictor(chain, costs, batch_size), plan.strategy, list(plan.stretches())
    )


def _placed(
    predictor: Predictor,
    strategy: str,
    peak_bytes: float | None,
    kept_share: float | None,
    layers: Sequence[str],
) -> Sequence[Stretch]:
    """The stretches that a strategy cuts a chain into."""
    chain = predictor.chain
    whole: list[Stretch] = [(0, len(chain.nodes), False)]
    if strategy == "none":
        return whole
    if strategy == "minimal":
        return _solver.lowest(predictor)
    if strategy == "sqrt":
        return _solver.uniform(predictor, round(len(chain.nodes) ** 0.5))
    if strategy == "stages":
        return _solver.of_cuts(_stages(predictor))
    if strategy == "manual":
        cuts = _after(chain, layers)
        Ordering(chain, predictor.costs.losing).check(cuts)
        return _solver.of_cuts(cuts)
    budget = Budget(
        peak_bytes or float("inf"),
        (kept_share or float("inf")) * predictor.predict(whole).kept_bytes,
    )
    found = _solver.cheapest(predictor, budget)
    if found is None:
        least = _plan(predictor, "minimal", _solver.lowest(predictor))
        raise RecomputeError(
            "Some plan must meet the budget",
            f"{_said(peak_bytes, kept_share)}, where the lowest peak is {megabytes(least.peak_bytes)} and keeps {megabytes(least.kept_bytes)}",
            "Raise the budget"
            if peak_bytes is None
            else "Raise the budget, or take a smaller batch",
        )
    return found


def _chain(model: keras.Model, batch_size: int) -> Chain:
    """The chain of a model whose bytes at a batch size can be told."""
    chain = Chain(model)
    for tensor in chain.functional.inputs:
        if None in tensor.shape[1:]:
            raise RecomputeError(
                "Inputs must be of a known size beside the batch, or nobody can tell the bytes",
                f"{tensor.name!r} of shape {tuple(tensor.shape)}",
                "Build the model for the size it trains with, and plan that one; its plan may be applied to this model",
            )
        if tensor.shape[0] not in (None, batch_size):
            raise RecomputeError(
                "`batch_size` must be that of the model's inputs, where they have one",
                f"{batch_size}, where {tensor.name!r} has {tensor.shape[0]}",
                f"Pass batch_size={tensor.shape[0]}",
            )
    return chain


def _vouched(chain: Chain, plans: list[Plan]) -> list[Plan]:
    """The plans, unless one makes something again in a model where nothing can be."""
    if any(plan.recomputes for plan in plans):
        _repeatable.check(chain)
    return plans


def _predictor(chain: Chain, batch_size: int) -> Predictor:
    return Predictor(chain, _costs(chain), batch_size)


def _costs(chain: Chain) -> Costs:
    key = signature(chain)
    if key is None:
        return costs_of(chain)
    if key not in _known:
        _known[key] = costs_of(chain)
    return _known[key]


def _plan(predictor: Predictor, strategy: str, stretches: Sequence[Stretch]) -> Plan:
    nodes, found = predictor.chain.nodes, predictor.predict(stretches)
    segments = tuple(
        PlannedSegment(
            nodes[start].name,
            nodes[stop - 1].name,
            stop - start,
            recompute and predictor.trains(start, stop),
        )
        for start, stop, recompute in stretches
    )
    return Plan(
        strategy,
        segments,
        predictor.batch_size,
        int(found.kept_bytes),
        int(found.peak_bytes),
        found.extra,
    )


def _stages(predictor: Predictor) -> list[int]:
    """Cuts where one value is alive and those after it have another size; where all have one, after each repeated block."""
    chain = predictor.chain
    narrow = [position for position in predictor.cuts[1:-1] if len(chain.live(position)) == 1]
    sizes = [predictor.bytes_of(chain.live(position)) for position in narrow]
    # the end of a residual block
    joins = [position for position in narrow if len(chain.nodes[position - 1].reads) > 1]
    changes = [
        one
        for one, size, after in zip(narrow, sizes, sizes[1:], strict=False)
        if size != after and one in joins
    ]
    return [0, *(changes if len(changes) > 1 else joins or narrow), len(chain.nodes)]


def _after(chain: Chain, layers: Sequence[str]) -> list[int]:
    where = {node.name: position for position, node in enumerate(chain.nodes, 1)}
    missing = [name for name in layers if name not in where]
    if missing:
        nested = [name for name in where if name.rpartition("/")[2] in missing]
        names = ", ".join(nested[:5] or list(where)[:5])
        raise RecomputeError(
            "`layers` must be names of this model's layers", missing, f"Pass names such as {names}"
        )
    return sorted({0, *(where[name] for name in layers), len(chain.nodes)})


def _check(
    strategy: str,
    batch_size: int,
    peak_bytes: float | None,
    kept_share: float | None,
    layers: Sequence[str],
) -> None:
    if strategy not in STRATEGIES:
        share = str(strategy).partition("budget:")[2]  # as recipes say it
        do = (
            f'Pass strategy="budget", kept_share={share}'
            if share[:1].isdigit()
            else "Pass one of these"
        )
        raise RecomputeError(
            f"`strategy` must be one of {', '.join(STRATEGIES)}", repr(strategy), do
        )
    if whole_number(batch_size) is None:
        raise RecomputeError(
            "`batch_size` must be a whole number of at least 1",
            repr(batch_size),
            "Pass the examples of one step",
        )
    given = [value for value in (peak_bytes, kept_share) if value is not None]
    if any(
        isinstance(value, bool) or not isinstance(value, numbers.Real) or not value > 0
        for value in given
    ):
        raise RecomputeError(
            "A budget must be a number above 0",
            _said(peak_bytes, kept_share),
            "Pass bytes, or a share such as 0.5",
        )
    if kept_share is not None and kept_share > 1:
        raise RecomputeError(
            "`kept_share` must be at most 1, the plain model's",
            kept_share,
            "Pass a share such as 0.5",
        )
    if strategy == "budget" and not given:
        raise RecomputeError(
            'strategy="budget" must come with a budget',
            "neither peak_bytes nor kept_share",
            "Pass kept_share=0.5, say",
        )
    if strategy != "budget" and given:
        raise RecomputeError(
            'A budget must come with strategy="budget"',
            f"strategy={strategy!r}",
            "Pass that strategy, or leave the budget out",
        )
    if isinstance(layers, str):
        raise RecomputeError(
            "`layers` must be a list of names", repr(layers), f"Pass layers=[{layers!r}]"
        )
    if (strategy == "manual") != bool(layers):
        raise RecomputeError(
            'strategy="manual" must come with `layers`, and no other with it',
            strategy,
            "Pass layers=[...] with it",
        )


def _said(peak_bytes: float | None, kept_share: float | None) -> str:
    return ", ".join(
        f"{name}={value!r}"
        for name, value in (("peak_bytes", peak_bytes), ("kept_share", kept_share))
        if value is not None
    )
