"""Table: the largest batch of every combination of a space."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.errors import (
    DataError,
    MemoryLimitError,
    ModelError,
    NoMemoryLimitError,
    in_one_frame,
)
from kbatch.memory import _cache
from kbatch.memory._find import FinderArguments, WorkerOptions, lower_size, parted, room
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Row, SearchResult, Table, recipe_of
from kbatch.memory._micro_batch import MOST_STEPS
from kbatch.memory._prober import SUSPECTS, Prober, shown_lines
from kbatch.memory._search import (
    Approach,
    Prediction,
    SizeOptions,
    approach,
    computed,
    conclude,
    nothing_fits,
    predict,
)
from kbatch.memory._workload import (
    Workload,
    check_size,
    leaves,
    longest_of,
    nested,
    pipelines,
    surveyed,
)
from kbatch.model_spec import ModelSpec, shows
from kbatch.recipe import Recipe
from kbatch.recipe_words import PLAIN, whole_number
from kbatch.runtime import device, device_memory
from kbatch.space import Combination, Space, combinations

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Case:
    """What a row of the table is for."""

    workload: Workload
    length: int = 0  # of the examples, where a table has several

    @property
    def key(self) -> tuple[Combination, int]:
        """What tells it from the others of a table."""
        return Combination.of(self.workload.recipe), self.length


class TableSearch:
    """Finds the largest batch of every combination, at each length of the data."""

    def __init__(
        self,
        workloads: Mapping[int, Workload],
        augmentation: str,
        make_prober: Callable[[Workload], Prober],
        limit_bytes: int | None,
        ceiling: int | None,
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        self._workloads, self._augmentation = workloads, augmentation
        self._make_prober, self._on_row = make_prober, on_row
        self._ceiling = ceiling
        self._fast: int | None = None  # examples, times their length, from which speed is flat
        # A search validates with batches of this size, whatever it trains with.
        self._options = SizeOptions(ceiling, validation_batch_size=VALIDATION_BATCH_SIZE)
        self._limit_bytes = limit_bytes or 0
        self._executed = self._compilations = 0

    def table(self, combinations: list[Combination]) -> Table:
        """Return the table of these combinations."""
        began = time.perf_counter()
        rows: dict[tuple[Combination, int], Row] = {}
        for cases in self._groups(combinations):
            for row in self._rows(cases):
                rows[row.combination, row.length] = row
                if self._on_row:
                    self._on_row(row)
        if not any(row.batch_size for row in rows.values()):
            raise MemoryLimitError(
                "One example must fit into the memory limit with some recipe of the space",
                f"{self._limit_bytes / 1e6:,.0f} MB, in which none does",
                "Raise the limit, or take a smaller model",
            )
        return Table(
            tuple(rows[each, length] for each in combinations for length in self._workloads),
            self._limit_bytes,
            self._augmentation,
            self._executed,
            self._compilations,
            time.perf_counter() - began,
        )

    def _groups(self, combinations: list[Combination]) -> Iterator[list[Case]]:
        """Cases that share what one probe shows: a policy, and TensorFlow alone or XLA."""
        for policy in dict.fromkeys(each.policy for each in combinations):
            for jit in (False, True):
                group = [
                    each
                    for each in combinations
                    if (each.policy, each.jit_compile) == (policy, jit)
                ]
                cases = [case for each in group for case in self._cases(each)]
                if jit:  # XLA's prediction is exact: nothing to share
                    yield from ([case] for case in cases)
                elif cases:
                    yield cases

    def _cases(self, combination: Combination) -> list[Case]:
        """The cases of a combination, the longest examples first."""
        recipe = recipe_of(combination, self._augmentation)
        lengths = sorted(self._workloads, reverse=True)
        return [Case(self._workloads[length].of(recipe), length) for length in lengths]

    def _rows(self, cases: list[Case]) -> Iterator[Row]:
        """Rows of cases that share the correction by the first one's probes."""
        prober = self._make_prober(cases[0].workload)
        try:
            approaches = list(self._approaches(prober, cases))
            for number, (case, known) in enumerate(zip(cases, approaches, strict=True)):
                if known is None:
                    yield _none(case)
                    continue
                if number:
                    prober.close()
                    prober = self._make_prober(case.workload)
                self._turn_to(case, prober)
                yield self._row(case, known, prober)
        finally:
            prober.close()

    def _turn_to(self, case: Case, prober: Prober) -> None:
        """Go on with another case, whose examples may be shorter."""
        prober.another(case.workload)
        fast = None if self._fast is None else -(-self._fast // max(1, case.length))
        self._options = dataclasses.replace(self._options, ceiling=lower_size(self._ceiling, fast))

    def _approaches(self, prober: Prober, cases: list[Case]) -> Iterator[Approach | None]:
        """Where each case's confirmation begins; `None` if its model itself does not fit."""
        scale: tuple[float, float] | None = None
        for case in cases:
            self._turn_to(case, prober)
            try:
                prediction = predict(prober, self._options)
            except NoMemoryLimitError:
                raise
            except MemoryLimitError:
                yield None
                continue
            self._limit_bytes = self._limit_bytes or prediction.limit_bytes
            if prediction.compiled is not None:
                self._compilations += prediction.compiled.compilations
            if scale is not None:
                known = self._computed(prediction, scale)
                yield self._with_accumulating(prober, case, known, scale)
                continue
            known = approach(prober, prediction, self._options)
            self._executed += len(known.speed.probes) + len(known.result.probes)
            if known.speed.flat is not None:
                self._fast = known.speed.flat * max(1, case.length)
                self._turn_to(case, prober)
            scale = self._scale(known)
            known = dataclasses.replace(known, prediction=_scaled(prediction, scale))
            yield self._with_accumulating(prober, case, known, scale)

    def _with_accumulating(
        self, prober: Prober, case: Case, known: Approach, scale: tuple[float, float]
    ) -> Approach:
        """An approach with the largest micro-batch that its prediction allows.

        A step that takes a micro-batch holds one more gradient. A step that takes the whole batch
        holds all examples of it besides: it is predicted with the most passes.
        """
        recipe = case.workload.recipe
        if recipe.training == PLAIN:
            added_bytes = known.prediction.model.gradient_bytes
            return dataclasses.replace(
                known, accumulating=self._largest(known.prediction, added_bytes)
            )
        many = dataclasses.replace(recipe, batch_size=MOST_STEPS, micro_batch_size=1)
        prober.another(case.workload.of(many))
        try:
            prediction = _scaled(predict(prober, self._options), scale)
        except (MemoryLimitError, ModelError):  # a model too large, or one that cannot accumulate
            return known
        size = self._largest(prediction, 0)
        if prediction.compiled is not None:  # not to be confirmed
            size = int(size * MARGINS.computed)
        return dataclasses.replace(known, accumulating=size)

    def _scale(self, known: Approach) -> tuple[float, float]:
        """The correction of a prediction by its largest probe that passed.

        The other rows end near the limit too, where the allocator wastes less than at half of it.
        """
        need = known.prediction.need
        passed = [probe for probe in known.result.probes if probe.passed]
        if need is None or not passed:
            return 1.0, 0.0
        largest = max(passed, key=lambda probe: probe.batch_size)
        return need.scale(largest)

    def _computed(self, prediction: Prediction, scale: tuple[float, float]) -> Approach:
        """An approach without a probe: the size that the corrected prediction allows."""
        corrected = _scaled(prediction, scale)
        return computed(self._largest(corrected, 0), corrected, self._options)

    def _largest(self, prediction: Prediction, added_bytes: int) -> int:
        """The largest size of a corrected prediction while some more bytes are held."""
        if prediction.need is not None:
            fitting_bytes = MARGINS.computed * prediction.usable_bytes
            size = prediction.need.largest(fitting_bytes - added_bytes)
        elif prediction.compiled is None:
            size = 0
        elif added_bytes:
            size = prediction.compiled.with_added(added_bytes)
        else:
            size = prediction.compiled.batch_size
        return min(self._options.largest, prediction.most_examples, size)

    def _row(self, case: Case, known: Approach, prober: Prober) -> Row:
        """The row of a case, once its size has trained with memory to spare."""
        result = conclude(prober, known, self._options)
        self._executed += len(result.confirmations)
        larger = self._larger(known, result)
        if larger > result.batch_size > 0:
            result = self._confirmed_once_more(prober, larger, result)
        if not result.batch_size:
            if result.last is not None and result.last.ended in SUSPECTS:
                raise nothing_fits(result.last, known.prediction.model)
            return _none(case)
        return Row(
            case.key[0],
            result.batch_size,
            self._accumulated(known, result.batch_size),
            result.peak_bytes,
            result.first_failing,
            result.confirmed_steps,
            result.why_failing,
            result.first_peak_bytes,
            case.length,
        )

    def _larger(self, known: Approach, result: SearchResult) -> int:
        """The size that a computed row's own peak allows, if that left much memory unused."""
        need, usable_bytes = known.prediction.need, known.prediction.usable_bytes
        enough = result.peak_bytes >= MARGINS.upward * usable_bytes
        probed = known.result.probes or result.first_failing is not None
        if need is None or probed or enough or not result.batch_size:
            return 0
        own = need.scaled(*need.scale(result.confirmations[-1]))
        corrected = dataclasses.replace(known.prediction, need=own)
        return min(self._largest(corrected, 0), known.ceiling)

    def _confirmed_once_more(
        self, prober: Prober, batch_size: int, result: SearchResult
    ) -> SearchResult:
        """The result of a larger size; where that fails, the first result."""
        options = self._options
        probe = prober.confirm(batch_size, options.confirmed_steps, options.validation_batch_size)
        self._executed += 1
        return SearchResult.of(result.probes, (*result.confirmations, probe))

    def _accumulated(self, known: Approach, batch_size: int) -> int:
        """The largest micro-batch while gradients are accumulated, computed and not confirmed.

        Where confirmation lowered the size, it is lowered by the same factor.
        """
        plain = self._largest(known.prediction, 0)
        return max(0, min(known.accumulating * batch_size // max(1, plain), batch_size))


def _scaled(prediction: Prediction, scale: tuple[float, float]) -> Prediction:
    """A prediction with its curve corrected; XLA's numbers need none."""
    if prediction.need is None:
        return prediction
    return dataclasses.replace(prediction, need=prediction.need.scaled(*scale))


def _none(case: Case) -> Row:
    """The row of a case that does not train one example within the limit."""
    combination, length = case.key
    return Row(combination, 0, 0, 0, 1, 0, length=length)


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
    lengths: Sequence[int] = (),
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
        lengths: Integers, such as `(128, 256, 512)`, for a row at each: the first size of each
            input, as of texts of so many tokens. `Table.buckets` makes batches of them. A search
            that is given the table keeps to the longest. Optional.
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
    workloads = _by_length(workload, lengths)
    workload = workloads[max(workloads)]
    limit_bytes = device_memory.checked_limit(memory_limit)
    most = lower_size(check_size("ceiling", ceiling), examples)
    space, augmentation, models = _models(workload, space, limit_bytes, worker)
    name = _cache.key(
        {
            "what": "table",
            "of": combinations(space),
            "under": space.augmentation,
            **room(limit_bytes),
            "ceiling": most,
            "shapes": [each.shapes for each in workloads.values()],
            "models": models,
        }
    )
    known = None if worker.fresh else _cache.load_as(name, Table.from_dict)
    if known is not None:
        return dataclasses.replace(known, shape=workload.at)
    device.check_gpu_free()

    def make_prober(workload: Workload) -> Prober:
        return Prober(workload, limit_bytes, worker.timeout_seconds, shown_lines(worker.on_probe))

    search = TableSearch(workloads, augmentation, make_prober, limit_bytes, most, on_row)
    table = dataclasses.replace(search.table(combinations(space)), shape=workload.at)
    _cache.save(name, table.to_dict())
    return table


def _by_length(workload: Workload, lengths: Sequence[int]) -> dict[int, Workload]:
    """The workload at each length; under 0 as it is, if none is named."""
    if isinstance(lengths, str) or not all(whole_number(length) for length in lengths):
        raise MemoryLimitError(
            "`lengths` must be whole numbers of at least 1", lengths, "Pass (128, 256), say"
        )
    found = {}
    for length in sorted({*lengths}):
        sample = _of_length(workload.sample, length)
        found[length] = dataclasses.replace(workload, sample=sample, at="")
    return found or {0: workload}


def _of_length(sample: tuple[Any, ...], length: int) -> tuple[Any, ...]:
    """A sample whose inputs are so long; labels that are as long as the inputs follow."""
    inputs = list(leaves(sample[0])) if sample else []
    if len({part.shape[1] for part in inputs if part.ndim > 1}) != 1:
        raise DataError(
            "`lengths` must come with inputs of one length each, such as tokens",
            [part.shape[1:] for part in inputs] or "no data",
            "Pass x of such inputs, or shape=; else call find_max_batch for each shape",
        )

    def shape_of(part: Any) -> tuple[int, ...]:
        return (length, *part.shape[2:]) if part.ndim > 1 else part.shape[1:]

    shape = longest_of(None, sample, nested(sample[0], shape_of))
    return sample if shape is None else shape.of(sample)


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
