"""Table: the largest batch of every combination of a space."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbatch.combination import Combination, combinations
from kbatch.errors import MemoryLimitError, in_one_frame
from kbatch.memory import _cache
from kbatch.memory._arguments import FinderArguments, WorkerOptions, parted
from kbatch.memory._batch_sizes import check_size, lower
from kbatch.memory._find_max_batch import room
from kbatch.memory._max_batch_table import Row, Table, recipe_of
from kbatch.memory._probe_lines import shown
from kbatch.memory._prober import Prober
from kbatch.memory._table_search import TableSearch
from kbatch.memory._workload import Workload, pipelines, surveyed
from kbatch.model_spec import ModelSpec, shows
from kbatch.recipe import Recipe
from kbatch.runtime import device
from kbatch.runtime import memory_limit as runtime_memory_limit
from kbatch.space import Space

if TYPE_CHECKING:
    from typing_extensions import Unpack


@shows(ModelSpec, WorkerOptions)
@in_one_frame
def max_batches(
    build: Callable[..., Any] | ModelSpec,
    x: Any = None,
    y: Any = None,
    space: Space | None = None,
    memory_limit: int | float | str | None = None,
    ceiling: int | None = None,
    *,
    shape: Any = None,
    on_row: Callable[[Row], None] | None = None,
    project: str | os.PathLike[str] | None = None,
    **arguments: Unpack[FinderArguments],
) -> Table:
    """Find the largest batch of every (policy, optimizer, jit, recompute) of a space.

    Use it before a search and before TensorFlow touches the GPU, and pass the table on:
    `HyperModel(build, max_batch=table)` then never trains a recipe that cannot fit. The table takes
    far fewer probes than a search for each row. One recipe of a policy is probed, as
    `find_max_batch` does. The others are computed from their traces and those probes, and each
    answer is confirmed with 7 % less memory. With `jit_compile`, XLA tells the need exactly, and
    only the answer is trained. The table is kept on disk, as `find_max_batch` keeps its answers.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, or a `kbatch.ModelSpec`.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        space: `Space` whose policies, optimizers, `jit_compile` and `recompute` are combined.
            Defaults to `Space()`.
        memory_limit: See `kbatch.find_max_batch`.
        ceiling: Integer, the largest batch size to try. Optional.
        shape: See `kbatch.find_max_batch`.
        on_row: Function called with every `Row`. Optional.
        project: Folder of a search's KerasTuner project. If the search began with a table, that
            table is returned and nothing is measured, whatever else is passed: a resumed search
            must keep its sizes. Optional.
        **arguments: See `kbatch.find_max_batch`. The table holds for `values` alone: if a search
            varies the size of the model too, pass the largest.

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
    spec, worker = parted(build, arguments)
    space = space or Space()
    sample, examples, at = surveyed(x, y, shape)
    own = pipelines(space.augmentation)
    workload = Workload(spec, sample, reserved=space.reserved, pipelines=own, at=at)
    limit_bytes = runtime_memory_limit.checked_limit(memory_limit)
    most = lower(check_size("ceiling", ceiling), examples)
    space, augmentation, models = _models(workload, space, limit_bytes, worker)
    name = _cache.key(
        {
            "what": "table",
            "of": combinations(space),
            "under": space.augmentation,
            **room(limit_bytes),
            "ceiling": most,
            "shapes": workload.shapes,
            "models": models,
        }
    )
    known = None if worker.fresh else _cache.load_as(name, Table.from_dict)
    if known is not None:
        return dataclasses.replace(known, shape=workload.at)
    device.check_gpu_free()

    def make_prober(workload: Workload) -> Prober:
        return Prober(workload, limit_bytes, worker.timeout_seconds, shown(worker.on_probe))

    search = TableSearch(workload, augmentation, make_prober, limit_bytes, most, on_row)
    table = dataclasses.replace(search.table(combinations(space)), shape=workload.at)
    _cache.save(name, table.to_dict())
    return table


def _models(
    workload: Workload, space: Space, limit_bytes: int | None, worker: WorkerOptions
) -> tuple[Space, str, dict[str, str]]:
    """The space to combine, the augmentation to measure with, and each policy's digest.

    The digest tells the user's model from others. Optimizer, jit and recompute come to the model
    from outside; the policy is the part of a combination that the model itself sees. A space that
    leaves XLA open has it only if Keras would compile the model.
    """
    first = workload.of(_plain(combinations(space)[0], space.augmentation[0]))
    with Prober(first, limit_bytes, worker.timeout_seconds, None, device.without_gpu()) as prober:
        if space.jit_compile is None and True in space.compilations:
            jit_compile = (False, True) if prober.is_compiled_by_xla() else (False,)
            space = dataclasses.replace(space, jit_compile=jit_compile)
        augmentation = space.augmentation[0]
        if len(space.augmentation) > 1:
            augmentation = prober.heaviest(space.augmentation)
        return space, augmentation, _digests(prober, combinations(space), augmentation)


def _digests(
    prober: Prober, combinations: Sequence[Combination], augmentation: str
) -> dict[str, str]:
    """A digest of the traced model for each policy."""
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
