"""Search for a table's rows: one probe per policy, the other rows computed from it and confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbatch.combination import Combination
from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.device import limit
from kbatch.errors import MemoryLimitError
from kbatch.memory._confirm import confirmed
from kbatch.memory._max_batch_table import Row, Table, recipe_of
from kbatch.memory._need import UNBOUNDED, Need
from kbatch.memory._next_size import TARGET_SHARE, any_size, first
from kbatch.memory._probe import SUSPECTS, Facts, Probe
from kbatch.memory._prober import Prober
from kbatch.memory._search import (
    CONFIRMED_STEPS,
    STEP_DOWN,
    compiled_maximum,
    nothing_fits,
    speeds,
    traced_need,
)
from kbatch.memory._workload import Workload
from kbatch.recipe import Recipe

COMPILED_STEP_DOWN = 0.01


class Tabulating:
    """Makes one table.

    Args:
        workload: What to measure, with any recipe.
        augmentation: Name of the pipeline to measure with.
        limit_bytes: Integer, or `None` for what the device has.
        ceiling: Integer, the largest batch size to try, or `None`.
        timeout_seconds: Float, after which a probe is taken to hang.
        on_probe: Called with every probe.
        on_row: Called with every row.
    """

    def __init__(
        self,
        workload: Workload,
        augmentation: str,
        limit_bytes: int | None,
        ceiling: int | None,
        timeout_seconds: float,
        on_probe: Callable[[Probe], None] | None,
        on_row: Callable[[Row], None] | None,
    ) -> None:
        self.workload, self.augmentation, self.limit_bytes, self.ceiling = (
            workload,
            augmentation,
            limit_bytes,
            ceiling or UNBOUNDED,
        )
        self._timeout_seconds, self._on_probe, self._on_row = timeout_seconds, on_probe, on_row
        self._executed = self._compilations = 0
        self._limit = 0

    def table(self, combinations: list[Combination]) -> Table:
        """The table of these combinations.

        Raises:
            MemoryLimitError: If nothing fits at all.
        """
        began = time.perf_counter()
        rows: dict[Combination, Row] = {}
        for policy in dict.fromkeys(combination.policy for combination in combinations):
            for jit in (False, True):
                recipes = [
                    recipe_of(each, self.augmentation)
                    for each in combinations
                    if (each.policy, each.jit_compile) == (policy, jit)
                ]
                for row in (self._compiled if jit else self._traced)(recipes) if recipes else []:
                    rows[row.combination] = row
                    if self._on_row:
                        self._on_row(row)
        if not any(row.batch_size for row in rows.values()):
            raise MemoryLimitError(
                "One example must fit into the memory limit with some recipe of the space",
                f"{(self.limit_bytes or self._limit) / 1e6:,.0f} MB, in which none does",
                "Raise the limit, or take a smaller model",
            )
        seconds = time.perf_counter() - began
        ordered = tuple(rows[combination] for combination in combinations)
        return Table(
            ordered,
            self.limit_bytes or self._limit,
            self.augmentation,
            self._executed,
            self._compilations,
            seconds,
        )

    def _traced(self, recipes: list[Recipe]) -> list[Row]:
        """Rows of one policy without XLA: one probe tells how far the traces are off, for all optimizers."""
        planned: list[tuple[Recipe, Facts, Need]] = []
        scale: tuple[float, float] | None = None
        with self._prober(recipes[0]) as prober:
            for recipe in recipes:
                prober.another(self.workload.of(recipe))
                try:
                    facts = prober.facts()
                except MemoryLimitError:
                    planned.append(
                        (recipe, Facts(self._limit, "", 0, 0, 0, 0), Need(((float("inf"), 1.0),)))
                    )
                    continue
                self._check(facts)
                need = traced_need(prober.moments(), facts)
                if scale is None:
                    self._stop_where_flat(prober, need.largest(limit.spared(self._limit)))
                    scale = self._scale(prober, need)
                planned.append((recipe, facts, need.scaled(*scale)))
        rows = []
        for recipe, facts, need in planned:
            size = min(self.ceiling, need.largest(TARGET_SHARE * limit.spared(self._limit)))
            accumulating = need.largest(
                TARGET_SHARE * limit.spared(self._limit) - facts.gradient_bytes
            )
            rows.append(self._confirmed(recipe, size, accumulating, STEP_DOWN))
        return rows

    def _scale(self, prober: Prober, need: Need) -> tuple[float, float]:
        """How much steeper than traced the need rises, and what it has beside."""
        size = first(need, self._limit, self.ceiling, any_size)
        probe = self._counted(prober.probe(size))
        while not probe.passed and size > 1:
            size = max(1, size // 2)
            probe = self._counted(prober.probe(size))
        return need.scale(probe) if probe.passed else (1.0, 0.0)

    def _compiled(self, recipes: list[Recipe]) -> list[Row]:
        """Rows of one policy with XLA, which tells what it needs."""
        rows = []
        for recipe in recipes:
            with self._prober(recipe) as prober:
                try:
                    facts = prober.facts()
                except MemoryLimitError:
                    rows.append(_none(recipe))
                    continue
                self._check(facts)
                found = compiled_maximum(self._compiling(prober), facts, self.ceiling)
                self._stop_where_flat(prober, found.batch_size)
            size = min(self.ceiling, found.batch_size)
            rows.append(
                self._confirmed(
                    recipe, size, found.largest(facts.gradient_bytes), COMPILED_STEP_DOWN
                )
            )
        return rows

    def _confirmed(self, recipe: Recipe, size: int, accumulating: int, step_down: float) -> Row:
        """The row of a predicted size, once it has trained with memory to spare; smaller if it did not."""
        with self._prober(recipe) as prober:
            found = confirmed(
                lambda batch_size: self._counted(self._confirm(prober, batch_size)),
                size,
                step_down,
                any_size,
            )
        if found.batch_size:
            fits = found.batch_size
            return Row(
                Combination.of(recipe),
                fits,
                max(0, min(accumulating * fits // size, fits)),
                found.peak_bytes,
                found.first_failing,
                found.steps,
            )
        if found.probes and found.probes[-1].ended in SUSPECTS:
            raise nothing_fits(found.probes[-1], Facts(self._limit, "", 0, 0, 0, 0))
        return _none(recipe)

    def _confirm(self, prober: Prober, batch_size: int) -> Probe:
        # what a search will validate with, whatever it trains with
        probe = prober.confirm(batch_size, CONFIRMED_STEPS, VALIDATION_BATCH_SIZE)
        if probe.phase == "validation" and not probe.passed:
            raise _validation_does_not_fit(probe)
        return probe

    def _stop_where_flat(self, prober: Prober, most: int) -> None:
        """Lower the ceiling to where larger batches gain no speed, if it is far above."""
        found = speeds(prober, min(self.ceiling, most))
        self._executed += len(found.probes)
        self.ceiling = found.most(self.ceiling)

    def _prober(self, recipe: Recipe) -> Prober:
        return Prober(
            self.workload.of(recipe), self.limit_bytes, self._timeout_seconds, self._on_probe
        )

    def _check(self, facts: Facts) -> None:
        if facts.limit_bytes is None:
            raise limit.refuse_none()
        self._limit = facts.limit_bytes

    def _counted(self, probe: Probe) -> Probe:
        self._executed += 1
        return probe

    def _compiling(self, prober: Prober) -> Callable[[int], int]:
        def compiled_bytes(size: int) -> int:
            self._compilations += 1
            return prober.compiled_bytes(size)

        return compiled_bytes


def _none(recipe: Recipe) -> Row:
    return Row(Combination.of(recipe), 0, 0, 0, 1, 0)


def _validation_does_not_fit(probe: Probe) -> MemoryLimitError:
    return MemoryLimitError(
        f"A validation batch of {VALIDATION_BATCH_SIZE} examples must fit into the memory limit",
        f"a model that trains with {probe.batch_size} and then ended: {probe.ended.replace('_', ' ')}",
        "Raise the limit, or take a smaller model",
    )
