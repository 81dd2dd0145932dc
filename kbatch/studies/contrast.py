"""Contrast: findings on which of several batch sizes is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kbatch.studies.comparison import (
    Answer,
    Comparison,
    Values,
    above_chance,
    best,
    bests,
    compared,
)
from kbatch.studies.verdict import Case, Finding

CASES: Mapping[Answer, Case] = {"higher": "yes", "lower": "no", "within noise": "undecided"}
UNMEASURED = Finding("missing", "not all batch sizes of the comparison were measured")
AT_CHANCE = "neither is above chance by more than noise"


def contrast(first: Sequence[Values], second: Sequence[Values]) -> Finding:
    """Return whether the best of some sizes is more accurate than the best of some others.

    The interval allows for both being chosen by these same trainings.

    Args:
        first: Accuracies of the sizes that are claimed to be better.
        second: Accuracies of the others.
    """
    lacking = missing(first, second)
    if lacking is not None:
        return lacking
    one, other = best(first), best(second)
    comparison = compared(one, other, len(first) * len(second))
    case = CASES[comparison.answer]
    return learned(case, (one, other), comparison, len(first) + len(second))


def choice(chosen_by: Sequence[Values], judged_by: Sequence[Values]) -> Finding:
    """Return whether one measurement chooses the size that is best by another.

    It does if it tells its best size from the others, and that size is above all others by the
    other measurement too. It does not if another size is above it there.

    Args:
        chosen_by: Values by which a size is chosen.
        judged_by: Accuracies of the same sizes, by which the choice is judged.
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
    case: Case, sides: tuple[Values, Values], comparison: Comparison, sizes: int
) -> Finding:
    """Return a finding with its numbers; undecided if neither side learned anything.

    Args:
        case: The case, if something was learned.
        sides: Accuracies of the two sizes compared.
        comparison: Their comparison.
        sizes: Integer, the number of sizes of which these were chosen.
    """
    words = f"{sides[0]}, {sides[1]} ({comparison})"
    few = math.isinf(comparison.half_width)
    if few or any(above_chance(side, sizes) for side in sides):
        return Finding(case, words)
    return Finding("undecided", f"{words}, {AT_CHANCE}")


def missing(*sides: Sequence[Values]) -> Finding | None:
    """Return the finding that a size has no value, or `None` if all sizes of all sides have one."""
    if not all(sides):
        return UNMEASURED
    failed = sorted({each.size for side in sides for each in side if not each.known})
    if not failed:
        return None
    return Finding("missing", f"a cell at batch {', '.join(map(str, failed))} has no value")
