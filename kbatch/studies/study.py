"""Study: the cells of a published table, and the tables and verdicts that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.results.interval import FEWEST_SEEDS
from kbatch.studies.cell import (
    LEAST_IMAGE_SIZE,
    NOTHING,
    Answer,
    Cell,
    CellComparison,
    CellResults,
    Length,
    Setting,
    StudyTable,
    Values,
    above_chance,
    best,
    bests,
    by_batch,
    compared,
    mean_text,
)
from kbatch.text_table import TextTable

Found: TypeAlias = Literal[
    "holds", "holds in part", "does not hold here", "not decided here", "not measured here"
]
Case: TypeAlias = Literal["yes", "no", "undecided", "missing"]


@dataclass(frozen=True)
class ClaimCase:
    """What became of a claim in one case, such as for one optimizer."""

    case: Case  # `"undecided"`: a tie, or within noise; `"missing"`: a cell has no value
    evidence: str  # the numbers that say so

    def of(self, name: str) -> ClaimCase:
        """Return the same finding with a name before its numbers."""
        return ClaimCase(self.case, f"{name}: {self.evidence}")


@dataclass(frozen=True)
class Verdict:
    """A published claim, and what became of it here."""

    claim: str  # in a sentence
    source: str  # who published it
    found: Found
    evidence: str  # the numbers that say so

    @classmethod
    def by(cls, claim: str, source: str, findings: Sequence[ClaimCase]) -> Verdict:
        """Return the verdict that follows from the findings in all cases."""
        evidence = "; ".join(finding.evidence for finding in findings) or "no cells"
        return cls(claim, source, found([finding.case for finding in findings]), evidence)

    def unclaimed(self) -> Verdict:
        """Return the verdict of a quick study, which has numbers but claims nothing."""
        evidence = f"a quick study claims nothing. {self.evidence}"
        return dataclasses.replace(self, found="not decided here", evidence=evidence)


def found(cases: Sequence[Case]) -> Found:
    """Return what became of a claim, from the cases in which it held or did not.

    >>> found(["yes", "yes"]), found(["yes", "no"]), found(["no"])
    ('holds', 'holds in part', 'does not hold here')
    >>> found(["yes", "undecided"]), found(["yes", "missing"]), found([])
    ('not decided here', 'not measured here', 'not measured here')
    """
    if not cases or "missing" in cases:
        return "not measured here"
    if {"yes", "no"} <= set(cases):
        return "holds in part"
    if "undecided" in cases:
        return "not decided here"
    return "holds" if "yes" in cases else "does not hold here"


CASES: Mapping[Answer, Case] = {"higher": "yes", "lower": "no", "within noise": "undecided"}
UNMEASURED = ClaimCase("missing", "not all batch sizes of the comparison were measured")
AT_CHANCE = "neither is above chance by more than noise"


def contrast(first: Sequence[Values], second: Sequence[Values]) -> ClaimCase:
    """Return whether the best of some sizes is more accurate than the best of some others.

    The interval allows for both being chosen by these same trainings.
    """
    lacking = missing(first, second)
    if lacking is not None:
        return lacking
    one, other = best(first), best(second)
    comparison = compared(one, other, len(first) * len(second))
    case = CASES[comparison.answer]
    return learned(case, (one, other), comparison, len(first) + len(second))


def choice(chosen_by: Sequence[Values], judged_by: Sequence[Values]) -> ClaimCase:
    """Return whether one measurement chooses the size that is best by another.

    It does if it tells its best size from the others, and that size is above all others by the
    other measurement too. It does not if another size is above it there.
    """
    lacking = missing(chosen_by, judged_by)
    if lacking is not None:
        return lacking
    chosen = best(chosen_by)
    mine = [each for each in judged_by if each.size == chosen.size]
    rest = [each for each in judged_by if each.size != chosen.size]
    if not mine or not rest:
        return UNMEASURED
    rival = best(rest)
    comparison = compared(mine[0], rival, len(rest))
    case = CASES[comparison.answer]
    others = [each for each in chosen_by if each.size != chosen.size]
    if case == "no":
        others = [each for each in others if each.size == rival.size]
    pairs = len(chosen_by) * (len(chosen_by) - 1) // 2
    if not others or compared(chosen, best(others), pairs).answer != "higher":
        case = "undecided"
    finding = learned(case, (mine[0], rival), comparison, len(judged_by))
    return finding.of(f"batch {bests(chosen_by)} is chosen")


def learned(
    case: Case, sides: tuple[Values, Values], comparison: CellComparison, sizes: int
) -> ClaimCase:
    """Return a finding with its numbers; undecided if neither side learned anything."""
    words = f"{sides[0]}, {sides[1]} ({comparison})"
    few = math.isinf(comparison.half_width)
    if few or any(above_chance(side, sizes) for side in sides):
        return ClaimCase(case, words)
    return ClaimCase("undecided", f"{words}, {AT_CHANCE}")


def missing(*sides: Sequence[Values]) -> ClaimCase | None:
    """Return the finding that a size has no value, or `None` if all sizes of all sides have one."""
    if not all(sides):
        return UNMEASURED
    failed = sorted({each.size for side in sides for each in side if not each.known})
    if not failed:
        return None
    return ClaimCase("missing", f"a cell at batch {', '.join(map(str, failed))} has no value")


def sentences(measured: CellResults) -> list[str]:
    """Return what ran here: pictures, network, trainings, memory limit, and whether it is quick.

    All numbers are those of the setting and the cells, not those that were published.
    """
    frame, setting, sample = measured.frame, measured.setting, measured.sample
    lengths = dict.fromkeys(zip(frame.length, frame.unit, strict=True))
    trained = " or ".join(counted(length, unit) for length, unit in lengths)
    said = [
        f"pictures: {sample}, {setting.image_size} px, from {sample.source}",
        f"network: {', '.join(frame.model.unique())}",
        f"each training: {trained}; {counted(frame.seed.nunique(), 'seeds')} of every cell",
    ]
    if frame.environment.any():
        said.append(f"memory limit: {megabytes(setting.memory_limit)}")
    if setting.quick:
        said.append("a quick study: few and small pictures, few sizes, and no claims")
    return said


def epochs_of(epochs: pd.DataFrame) -> str:
    """Return the number of epochs of some rows in words."""
    return " or ".join(counted(number, "epochs") for number in epochs.length.unique())


def megabytes(limit: int | None) -> str:
    """Return a memory limit in words.

    >>> megabytes(2 * 10**9), megabytes(None)
    ('2,000 MB', 'all that the device has')
    """
    return "all that the device has" if limit is None else f"{limit / 1e6:,.0f} MB"


def counted(number: float, things: str) -> str:
    """Return a number of things, of which there may be one.

    >>> counted(5, "epochs"), counted(1, "epochs"), counted(0.314, "seconds")
    ('5 epochs', '1 epoch', '0.314 seconds')
    """
    return f"{number:,g} {things.removesuffix('s') if number == 1 else things}"


def best_sizes(measured: CellResults, heading: str) -> StudyTable:
    """Return the table of the most accurate batch of each group, at each length."""
    lines = []
    for (group, unit), own in measured.frame.groupby(["group", "unit"], sort=False):
        length = counted(own.length.iloc[0], str(unit))
        sizes = measured.sizes(own, "val_accuracy")
        lines.append([group, length, *_line(sizes)])
    headings = [heading, "trained for", "best batch", "val_accuracy", "within noise of it"]
    return StudyTable(
        f"Best batch of each {heading}",
        TextTable(headings, lines),
        "Sizes within noise may be the best with other seeds.",
    )


def at_equal_seconds(measured: CellResults, whose: str = "") -> list[StudyTable]:
    """Return the table of accuracy at equal time; none before its cells have trained."""
    timed = measured.at_equal("seconds")
    if not len(timed):
        return []
    seconds = f"{timed.length.iloc[0]:.3g} training seconds"
    title = f"Validation accuracy held within {seconds}{whose}"
    return [StudyTable(title, by_batch(timed, "val_accuracy"))]


def _line(sizes: Sequence[Values]) -> list[str]:
    """The best size, its accuracy, and the sizes that are not told from it."""
    known = [each for each in sizes if each.known]
    if not known:
        return [NOTHING, NOTHING, NOTHING]
    top = best(known)
    return [bests(known), mean_text(top.values), _near(top, sizes)]


def _near(top: Values, sizes: Sequence[Values]) -> str:
    """The sizes within noise of the best, and those that cannot be compared with it."""
    seeds = len(top.values)
    if seeds < FEWEST_SEEDS:
        return f"{counted(seeds, 'seeds')}: not compared"
    pairs = len(sizes) * (len(sizes) - 1) // 2
    near, failed = [], []
    for each in sizes:
        if not each.known:
            failed.append(f"{each.size} has no value")
        elif each is not top and compared(top, each, pairs).answer == "within noise":
            near.append(str(each.size))
    return "; ".join([", ".join(near) or "none", *failed])


Cells: TypeAlias = Callable[[Setting, Mapping[str, int]], Sequence[Cell]]
Rungs: TypeAlias = Callable[[Setting], Mapping[str, Recipe]]
TimedCells: TypeAlias = Callable[[Setting, float], Sequence[Cell]]


def timed(cells: Cells) -> TimedCells:
    """Return the function that makes the cells at equal epochs last equal seconds instead."""

    def timed_cells(setting: Setting, seconds: float) -> Sequence[Cell]:
        length = Length(seconds, "seconds")
        return [cell.lasting(length) for cell in cells(setting, {}) if cell.length.unit == "epochs"]

    return timed_cells


def no_timed_cells(setting: Setting, seconds: float) -> Sequence[Cell]:
    """Return no cells: the study compares nothing at equal time."""
    return ()


def no_rungs(setting: Setting) -> Mapping[str, Recipe]:
    """Return no recipes: the study needs no largest batch."""
    return {}


@dataclass(frozen=True)
class Study:
    """One study."""

    name: str  # on the command line
    title: str
    question: str  # without the numbers of a setting
    published: Setting
    quick: Setting
    cells: Cells  # whose length is known beforehand; of the largest micro-batch of each rung
    tables: Callable[[CellResults], Sequence[StudyTable]]
    verdicts: Callable[[CellResults], Sequence[Verdict]]
    timed_cells: TimedCells = no_timed_cells  # at the median training time of the others
    rungs: Rungs = no_rungs  # the recipes whose largest micro-batch is found first, by name
    drawn: str = "val_accuracy"  # the column over the batch size; empty for no figure
    axis: str = "validation accuracy"  # the title of its axis, with the unit
    least_image_size: int = LEAST_IMAGE_SIZE  # pixels, below which its network has no room
    takes: tuple[str, ...] = ("image_size", "epochs", "seeds")  # what a user may replace
