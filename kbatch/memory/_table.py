"""Table: the largest batch of every combination of a space."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbatch.combination import Combination, combinations
from kbatch.device import gpu_in_use, limit
from kbatch.errors import MemoryLimitError
from kbatch.memory import _cache
from kbatch.memory._find import check_size, pipelines, room, smaller
from kbatch.memory._max_batch_table import Row, Table, recipe_of
from kbatch.memory._probe import Probe
from kbatch.memory._probe_lines import shown
from kbatch.memory._prober import TIMEOUT_SECONDS, Prober
from kbatch.memory._table_search import TableSearch
from kbatch.memory._workload import Workload, sample_of
from kbatch.recipe import Recipe
from kbatch.space import Space


def max_batches(
    build: Callable[..., Any],
    x: Any = None,
    y: Any = None,
    space: Space | None = None,
    memory_limit: int | float | str | None = None,
    ceiling: int | None = None,
    *,
    loss: Any = None,
    metrics: Any = None,
    seed: int = 0,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_probe: Callable[[Probe], None] | None = None,
    on_row: Callable[[Row], None] | None = None,
    declare: Callable[[Any], None] | None = None,
    values: Mapping[str, Any] | None = None,
    project: str | os.PathLike[str] | None = None,
    fresh: bool = False,
) -> Table:
    """The largest batch of every (policy, optimizer, jit, recompute) of a space, from far fewer probes than a search for each.

    Use it before a search, before TensorFlow touches the GPU, and pass it on:
    `HyperModel(build, max_batch=table)` then never trains a recipe that cannot fit. Per policy one
    combination is probed; what the others need beside it is computed from their traces, and each
    answer confirmed with 7 % less memory. With `jit_compile` XLA tells the need exactly and only
    the answer is trained. The table is kept on disk as `find_max_batch` keeps its answers.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        space: `Space` whose policies, optimizers, `jit_compile` and `recompute` are combined.
            Defaults to `Space()`.
        memory_limit: See `kbatch.find_max_batch`.
        ceiling: Integer, the largest batch size to try. Optional.
        loss: Loss, if `build` does not compile.
        metrics: Metrics, if `build` does not compile.
        seed: Integer, seed of the weights. Defaults to `0`.
        timeout_seconds: Float, after which a probe is taken to hang. Defaults to `600`.
        on_probe: Function called with every `Probe`. Defaults to a line each where people see it.
        on_row: Function called with every `Row`. Optional.
        declare: Function that declares the hyperparameters of `build`, if it does not itself.
            Optional.
        values: Values of the hyperparameters that `build(hp)` declares; the others take their
            defaults. The table holds for these alone: if a search varies the size of the model too,
            pass the largest.
        project: Folder of a search's KerasTuner project. If it was begun with a table, that one is
            returned and nothing is measured, whatever else is passed: a resumed search must keep
            its sizes. Optional.
        fresh: Boolean, whether to measure again what was measured before. Defaults to `False`.

    Returns:
        The `Table`; its `str()` is one for people, `.frame` is a pandas `DataFrame`.

    Raises:
        MemoryLimitError: If nothing fits at all, there is no limit, or TensorFlow holds the GPU
            already.
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    table = kbatch.max_batches(build, x, y, space, memory_limit="8GB", project="runs/pets")
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=60, max_batch=table)
    ```
    """
    stored = None if project is None else Table.of_project(project)
    if stored is not None:
        return stored
    space = space or Space()
    sample, examples = sample_of(x, y)
    workload = Workload(
        build,
        sample,
        Recipe(),
        loss,
        metrics,
        seed,
        space.reserved,
        declare,
        dict(values or {}),
        pipelines=pipelines(space.augmentation),
    )
    wanted = combinations(space)
    limit_bytes = limit.checked(memory_limit)
    most = smaller(check_size("ceiling", ceiling), examples)
    facts = {
        "what": "table",
        "of": wanted,
        "under": space.augmentation,
        **room(limit_bytes),
        "ceiling": most,
        "shapes": workload.shapes,
    }
    with Prober(
        workload.of(_plain(wanted[0], space.augmentation[0])),
        limit_bytes,
        timeout_seconds,
        None,
        gpu_in_use.environment(),
    ) as prober:
        augmentation = (
            space.augmentation[0]
            if len(space.augmentation) == 1
            else prober.heaviest(space.augmentation)
        )
        name = _cache.key({**facts, "models": _models(prober, wanted, augmentation)})
    known = None if fresh else _cache.load(name)
    if known is not None:
        return Table.from_dict(known)
    gpu_in_use.check_free()

    def make_prober(workload: Workload) -> Prober:
        return Prober(workload, limit_bytes, timeout_seconds, shown(on_probe))

    search = TableSearch(workload, augmentation, make_prober, limit_bytes, most, on_row)
    table = search.table(wanted)
    _cache.save(name, table.to_dict())
    return table


def _models(
    prober: Prober, combinations: Sequence[Combination], augmentation: str
) -> dict[str, str]:
    """What tells the user's model from others, by policy: optimizer, jit and recompute come to it from outside, the policy it can see."""
    models: dict[str, str] = {}
    own_optimizer_first = sorted(combinations, key=lambda each: each.optimizer != "compiled")
    for combination in own_optimizer_first:
        if combination.policy not in models:
            recipe = _plain(combination, augmentation)
            if recipe != prober.workload.recipe:
                prober.another(prober.workload.of(recipe))
            try:
                models[combination.policy] = prober.digest()
            except MemoryLimitError:
                models[combination.policy] = "does not fit"
    return models


def _plain(combination: Combination, augmentation: str) -> Recipe:
    """The recipe of a combination without what leaves the model as it is."""
    return recipe_of(combination._replace(jit_compile=False, recompute="none"), augmentation)
