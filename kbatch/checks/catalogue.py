"""Catalogue: every check, in the order in which they are made."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from kbatch.checks.accumulation import ACCUMULATION
from kbatch.checks.arguments import CLASS_WEIGHTS, FIRST_STEP, OWN_VALUES, SHAPES
from kbatch.checks.check import Check, Found, Subject
from kbatch.checks.state import PLACES, SEEDS, START, STATE
from kbatch.checks.validation import VALIDATION
from kbatch.errors import KbatchError, Problems

# Those that refuse come first: nothing else is worth a look then.
CHECKS: tuple[Check, ...] = (
    FIRST_STEP,
    STATE,
    CLASS_WEIGHTS,
    VALIDATION,
    START,
    SEEDS,
    ACCUMULATION,
    SHAPES,
    PLACES,
    OWN_VALUES,
)
FACT = "checks"  # under which a project keeps what was found


def made(subject: Subject, checks: Sequence[Check] = CHECKS) -> list[Found]:
    """Make all checks, and return what each found."""
    found = []
    for check in checks:
        began, refusal, finding = time.perf_counter(), None, None
        try:
            finding = check.look(subject)
        except KbatchError as error:
            refusal = error
        found.append(Found(check, finding, refusal, time.perf_counter() - began))
    return found


def refuse(found: Iterable[Found], problems: Problems | None = None) -> None:
    """Raise the refusals of checks as one error, or add them to problems that are raised later."""
    collected = Problems() if problems is None else problems  # one without problems is falsy
    for each in found:
        collected.of(functools.partial(_raised, each))
    if problems is None:
        collected.raise_all()


def sentences(found: Iterable[Found]) -> tuple[str, ...]:
    """Return what the user is told."""
    return tuple(each.sentence for each in found if each.finding and each.sentence)


def facts(found: Iterable[Found]) -> dict[str, Any]:
    """Return what was found by the name of the check, as JSON can hold it."""
    return {
        each.check.name: {
            "holds": each.finding.holds,
            "sentence": each.finding.sentence,
            "claimable": each.finding.claimable,
            **each.finding.facts,
        }
        for each in found
        if each.finding is not None
    }


def _raised(found: Found) -> None:
    if found.refusal is not None:
        raise found.refusal
