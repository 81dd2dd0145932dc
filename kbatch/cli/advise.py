"""The command `kbatch advise`: the advice on each recipe, and what could not be checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbatch.cli.command import (
    NUMBER,
    WHOLE,
    errors_of_users_code,
    new_console,
    told_plainly,
    with_options,
)
from kbatch.errors import RecordError, SearchError
from kbatch.recipe import Recipe
from kbatch.runtime import signals, users_code
from kbatch.runtime.users_code import imported

if TYPE_CHECKING:
    from kbatch.results._advice_evidence import Advice


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    """The options of `kbatch advise`, which `--help` explains."""

    directory: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="Folder of a search. Its best recipe and its baseline are looked at.",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            show_default="those of the folder",
            help="Fields of a recipe as JSON, such as '{\"batch_size\": 512}'; others have their "
            "defaults.",
        ),
    ] = None
    build: Annotated[
        str | None,
        typer.Option(
            help="module:function of the function that returns the model, importable from here."
        ),
    ] = None
    max_batch: Annotated[
        int | None, typer.Option(**WHOLE, help="Examples that fit in one pass (kbatch max-batch).")
    ] = None
    examples: Annotated[
        int | None,
        typer.Option(**WHOLE, show_default="the folder's", help="Number of training examples."),
    ] = None
    epochs: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            show_default="the length of a trial",
            help="Passes over the data that you plan.",
        ),
    ] = None
    devices: Annotated[
        int, typer.Option(**WHOLE, help="Devices that share each forward and backward pass.")
    ] = 1
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="The model has pretrained weights.")
    ] = False


@with_options(AdviseOptions)
def advise(options: AdviseOptions) -> None:
    """Say what a seasoned colleague would about a recipe, with reason and source.

    Of a folder the best recipe and the baseline are looked at; with --recipe, that recipe, by the
    results of the folder if there is one. TensorFlow is not needed without --build.
    """
    with told_plainly():
        console = new_console()
        for line in answer(options):
            console.print(line, highlight=False, soft_wrap=True)


NOTHING = "Nothing speaks against it."


def answer(options: AdviseOptions) -> Iterator[str]:
    """Give the lines of the advice on each recipe."""
    with signals.at_once():
        from kbatch.results._advice_rules import advice_on, unchecked
        from kbatch.results.advice import evidence_of

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
    from kbatch.results.loading import load_race, load_records
    from kbatch.results.ranking import best_of

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
    with errors_of_users_code("A model must be made", "Build it in Python to see where it fails"):
        return ModelMaker(named.load()).raw(policy)


def _lines(found: list[Advice]) -> Iterator[str]:
    if not found:
        yield f"  {NOTHING}"
    for advice in found:
        yield f"  • {advice.text}"
        yield f"    Why: {advice.reason}"
        yield f"    Source: {advice.source}"
