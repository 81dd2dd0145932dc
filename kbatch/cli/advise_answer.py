"""The answer of `kbatch advise`: the advice on each recipe, and what could not be checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from kbatch.cli.options import AdviseOptions
from kbatch.errors import KbatchError, ModelError, RecordError, SearchError
from kbatch.recipe import Recipe
from kbatch.results._advice_evidence import Advice
from kbatch.results._advice_rules import advice_on, unchecked
from kbatch.results.advice import evidence_of
from kbatch.results.loading import load_race, load_records
from kbatch.results.ranking import best_of
from kbatch.runtime import signals, users_code
from kbatch.runtime.users_code import imported

NOTHING = "Nothing speaks against it."


def answer(options: AdviseOptions) -> Iterator[str]:
    """Give the lines of the advice on each recipe."""
    models: dict[str, Any] = {}
    for name, recipe in _recipes(options).items():
        if options.build is not None and recipe.policy not in models:
            models[recipe.policy] = _model(options.build, recipe.policy)
        evidence = evidence_of(
            recipe,
            models.get(recipe.policy),
            options.directory,
            max_batch=options.max_batch,
            examples=options.examples,
            epochs=options.epochs,
            devices=options.devices,
            pretrained=options.pretrained,
        )
        yield f"{name}: {recipe}"
        yield from _lines(advice_on(evidence))
        left = unchecked(evidence)
        if left:
            yield f"  Not checked, for lack of evidence: {', '.join(left)}."


def _recipes(options: AdviseOptions) -> dict[str, Recipe]:
    """The recipes to look at, by what they are."""
    if options.recipe is not None:
        return {"recipe": Recipe.from_json(options.recipe)}
    if options.directory is None:
        raise SearchError(
            "There must be a recipe to advise on",
            "neither a folder nor --recipe",
            "Name the folder of a search, or pass --recipe '{\"batch_size\": 512}'",
        )
    records = load_records(options.directory)
    baselines = [record.recipe for record in records if record.baseline]
    best = best_of(records, load_race(options.directory).dropped)
    found = {} if best is None else {f"best recipe (trial {best.trial})": best.recipe}
    if baselines and (best is None or best.recipe != baselines[0]):
        found["baseline"] = baselines[0]
    if not found:
        raise RecordError(
            f"{options.directory} must hold a training that did not fail",
            f"{len(records)} trainings that failed",
            "Let the search finish a trial first, or pass --recipe",
        )
    return found


def _model(build: str, policy: str) -> Any:
    """The model that a function returns, made under a policy."""
    users_code.use_folder(os.getcwd())
    named = imported(build)
    with signals.at_once(), signals.turned_away():
        from kbatch.models.maker import ModelMaker
    try:
        return ModelMaker(named.load()).raw(policy)
    except KbatchError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        raise ModelError(
            "A model must be made",
            " ".join(f"{type(error).__name__}: {error}".split()),
            "Build it in Python to see where it fails",
        ) from error


def _lines(found: list[Advice]) -> Iterator[str]:
    if not found:
        yield f"  {NOTHING}"
    for advice in found:
        yield f"  • {advice.text}"
        yield f"    Why: {advice.reason}"
        yield f"    Source: {advice.source}"
