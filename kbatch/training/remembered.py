"""Remembered: data and callbacks of a search, which a later call must have again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.errors import SearchError
from kbatch.records.project import Project
from kbatch.training import arguments
from kbatch.training.arguments import FitArguments
from kbatch.training.terms import Terms

FACT = "given"
KEPT = ("batched", "validation_split", "validation_batch_size")  # what a project can keep itself
WHOSE_X = ("y", "sample_weight", "batched")  # belong to one x
HELD_OUT = ("validation_data", "validation_split")  # of which one is given


@dataclass(frozen=True)
class Remembered:
    """The arguments of a search that this process has made.

    Attributes:
        directory: Folder of the tuner's project.
        arguments: The arguments, with copies of the callbacks as they were.
    """

    directory: Path
    arguments: FitArguments

    @classmethod
    def of(cls, project: Project, arguments: FitArguments) -> Remembered:
        """Return what a search was given, with callbacks that no training has used."""
        fresh = copy.deepcopy(list(arguments.callbacks))
        return cls(project.directory, dataclasses.replace(arguments, callbacks=fresh))


def searched_by(tuner: Any, what: str) -> tuple[Any, Terms]:
    """Return the hypermodel of a tuner, and the terms of its search."""
    hypermodel = getattr(tuner, "hypermodel", None)
    terms = getattr(hypermodel, "terms", None)
    if hypermodel is None or not isinstance(terms, Terms):
        raise SearchError(
            f"{what} needs a search of kbatch's",
            type(tuner if hypermodel is None else hypermodel).__name__,
            "Pass a tuner made with kbatch.HyperModel",
        )
    return hypermodel, terms


def facts_of(arguments: FitArguments) -> dict[str, Any]:
    """Return which arguments a search was given, and those of them that a project can keep."""
    given = _given(vars(arguments))
    names = [name for name in given if name not in ("callbacks", "epochs", "verbose", *KEPT)]
    return {"names": names, **{name: given[name] for name in KEPT if name in given}}


def completed_arguments(
    remembered: Remembered | None, project: Project, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments by name, with those of the search where none is given."""
    own = {name: value for name, value in given.items() if value is not None}
    known: Mapping[str, Any] = project.facts().get(FACT) or {}
    from_search = {name: known[name] for name in KEPT if name in known}
    if remembered is not None and remembered.directory == project.directory:
        from_search = _given(vars(remembered.arguments))
    if "x" in own and own["x"] is not from_search.get("x"):
        kept = [name for name in from_search if name not in WHOSE_X or name in known]
        from_search = {name: from_search[name] for name in kept}
    if any(name in own for name in HELD_OUT):
        from_search = {name: from_search[name] for name in from_search if name not in HELD_OUT}
    return {**from_search, **own}


def check_complete(project: Project, given: Mapping[str, Any], what: str) -> None:
    """Refuse a call that lacks what the search was given, and say all of it by name."""
    facts = project.facts()
    names = (facts.get(FACT) or {}).get("names", ["x"])
    missing = {name: f"{name}=…" for name in names if name not in given}
    callbacks = facts.get(arguments.CALLBACKS_FACT) or []
    if callbacks and "callbacks" not in given:
        classes = arguments.callback_names(callbacks)
        missing[f"callbacks ({classes})"] = f"callbacks=[{classes}]"
    if missing:
        raise SearchError(
            "A process that has not made the search must be given what the search was given",
            f"{what} without {', '.join(missing)}",
            f"Pass {', '.join(missing.values())}",
        )


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not the defaults."""
    defaults: Sequence[Any] = dataclasses.fields(FitArguments)
    return {
        field.name: arguments[field.name]
        for field in defaults
        if field.name == "x" or not _is_default(arguments[field.name], field.default)
    }


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)) and not value:
        return True  # no callbacks
    plain = value is None or isinstance(value, (bool, int, float, str))
    return plain and (value is None or value == default)
