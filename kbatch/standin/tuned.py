"""Tune: from one call, a search, its confirmation, and the model trained by what won."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from kbatch.data.streams import inputs_of
from kbatch.errors import SearchError, in_one_frame
from kbatch.hypermodel import HyperModel
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import ModelMaker
from kbatch.models.preprocessor import preprocess_of, show
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.records import project
from kbatch.records.project import Project
from kbatch.results import page
from kbatch.results.export import code_of
from kbatch.results.ranking import leaders
from kbatch.results.report import Report, write
from kbatch.results.report import report as report_of
from kbatch.space import Space
from kbatch.standin import winner
from kbatch.standin.copies import give_labels_back
from kbatch.standin.fit_call import PARAMETERS, FitCall, keras_own_fit
from kbatch.standin.taken import Taken
from kbatch.training.arguments import FitArguments, seconds_of
from kbatch.training.confirmation import confirm
from kbatch.training.pace import RunOptions
from kbatch.training.progress import LivePage, bars_of
from kbatch.training.run import median_update_seconds
from kbatch.tuner import Tuner

BUDGET = "10min"
TRAININGS = 24  # that a budget has time for, so long is each at most; chosen by hand
OF_SEARCH = 0.6  # of the budget; the confirmation takes the rest. Chosen by hand
LEAST_BUDGET = 10.0  # seconds of a search, in which a trial begins; chosen by hand
LEAST_SECONDS = 1.0  # of a trial, where the budget has them; chosen by hand
LEAST_UPDATES = 12  # of the baseline, one for each mark
TIMED_UPDATES = range(3, 13)  # of the baseline; chosen by hand
SEARCH = "search"  # the project's name


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a user asks of a search besides what the call of `fit` says."""

    budget: str | float | None = None
    seconds_per_trial: float | None = None
    max_trials: int | None = None
    space: Space | None = None
    axes: Mapping[str, Any] = field(default_factory=dict)  # arguments of a Space; see `Taken.space`
    metric: str | None = None
    direction: str | None = None
    chance: float | None = None
    confirm_seeds: int = 3
    seed: int = 0
    isolated: bool = False
    validation_split: float | None = None  # for a search of a script that does not validate

    @property
    def budget_seconds(self) -> float:
        """Float, the wall-clock seconds of search and confirmation."""
        if self.budget is None:
            return math.inf if self.max_trials is not None else seconds_of(BUDGET)
        return seconds_of(self.budget)

    def search_seconds(self, began: float) -> float:
        """Return what is left of the budget for the search, since a time of the monotonic clock."""
        return max(OF_SEARCH * self.budget_seconds - (time.monotonic() - began), LEAST_BUDGET)


@dataclass(frozen=True)
class Found:
    """A search that has ended: its tuner, what it was made of, and the recipe to train by."""

    taken: Taken
    tuner: Tuner
    recipe: Recipe
    sentence: str  # why this recipe

    @property
    def report(self) -> Report:
        """What was measured."""
        return report_of(self.tuner)

    @property
    def baseline(self) -> Recipe:
        """`Recipe`, today's."""
        return Recipe.from_dict(Project(self.tuner.project_dir).facts()["baseline"])

    def trained(self) -> keras.callbacks.History:
        """Train the user's model by the recipe; see `winner.trained`."""
        hypermodel = self.tuner.hypermodel
        arguments = hypermodel.remembered.arguments
        own = Project(self.tuner.project_dir)
        search = hypermodel.prepared.matching(own, (), _given(arguments), None)
        maker = hypermodel.terms.model_maker
        if search is not None:
            data = search.data
        else:  # somebody has trained in the project meanwhile
            data = arguments.data(lambda: inputs_of(self.taken.call.model))
        goal = Goal.from_dict(own.facts()["goal"])
        return winner.trained(self.taken, self.recipe, maker, data, goal)


def _given(arguments: FitArguments) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if value is not None}


def searched(taken: Taken, wishes: Wishes, folder: Path) -> Found:
    """Search, confirm and report, in a folder; the same call goes on where it was."""
    try:
        return _searched(taken, wishes, folder)
    finally:
        give_labels_back(taken.call.model)
        show(taken.call.model)


def _searched(taken: Taken, wishes: Wishes, folder: Path) -> Found:
    began = time.monotonic()
    spec = ModelSpec.of(taken.build, seed=wishes.seed)
    space = taken.space(wishes.space, wishes.axes)
    seconds = wishes.seconds_per_trial or trial_seconds(
        ModelMaker.of(spec), space.baseline, taken.arguments, taken.epochs, wishes, folder / SEARCH
    )
    hypermodel = HyperModel(
        spec,
        space,
        metric=taken.metric,
        direction=wishes.direction,
        chance=_chance(taken, wishes, folder),
        seconds_per_trial=seconds,
        isolated=wishes.isolated,
    )
    hypermodel.watcher = LivePage(folder, bars_of(1))
    tuner = Tuner(hypermodel, directory=str(folder), project_name=SEARCH, tuner_seed=wishes.seed)
    ends: dict[str, Any] = (
        {"max_trials": wishes.max_trials} if wishes.max_trials is not None else {}
    )
    if math.isfinite(wishes.budget_seconds):
        ends["budget"] = wishes.search_seconds(began)
    own = {**taken.arguments, "callbacks": taken.callbacks_of_search(folder), "verbose": 0}
    complete(tuner, lambda: tuner.search(**own, **ends), wishes, folder, began)
    return Found(taken, tuner, *_chosen(report_of(tuner)))


def complete(
    tuner: Any, search: Callable[[], None], wishes: Wishes, folder: Path, began: float
) -> None:
    """Search, confirm with what the budget has left, and write results and page."""
    with page.at_rest(folder):
        search()
        records = Project(tuner.project_dir).store.records()
        if wishes.confirm_seeds and leaders(records, 1):
            left = max(wishes.budget_seconds - (time.monotonic() - began), 1.0)
            limit = {"budget": left} if math.isfinite(left) else {}
            confirm(tuner, top=1, seeds=wishes.confirm_seeds, **limit)
        write(folder)
    page.write(folder)


def _chance(taken: Taken, wishes: Wishes, folder: Path) -> float | None:
    """The metric of a model that learned nothing, where labels and outputs do not tell it."""
    if wishes.chance is not None:
        return wishes.chance
    facts = project.load_facts(folder / SEARCH / project.FOLDER) or {}
    if "chance" in facts:
        return facts["chance"]
    chance = taken.chance()
    if chance is not None:
        print(f"chance is {chance:.4g}: what the model measures before it is trained.", flush=True)
    return chance


def trial_seconds(
    maker: ModelMaker,
    today: Recipe,
    arguments: Mapping[str, Any],
    epochs: int,
    wishes: Wishes,
    directory: Path,
) -> float:
    """Return the seconds of a trial: of the epochs that were asked for, if the budget has so many.

    They are measured once, and then kept with the project in the directory.
    """
    known = (project.load_facts(directory / project.FOLDER) or {}).get("seconds_per_trial")
    if known:
        return float(known)
    recipe = maker.baseline(today)
    model = maker.make(recipe)
    data = FitArguments.parse((), arguments).data(lambda: inputs_of(model), preprocess_of(model))
    options = RunOptions(maker.seed, maker.own_policy)
    update = median_update_seconds(model, recipe, data, TIMED_UPDATES, options)
    updates = math.ceil(data.training.examples / recipe.batch_size)
    whole = epochs * updates * update
    longest = max(wishes.budget_seconds / TRAININGS, LEAST_UPDATES * update)
    return float(f"{min(max(whole, LEAST_SECONDS), longest):.3g}")


def _chosen(report: Report) -> tuple[Recipe, str]:
    """The recipe to train by, and why: the best if it is surely better, else today's."""
    baseline = next((each for each in report.records if each.baseline), None)
    if baseline is None:
        raise SearchError(
            "A budget must have time for the baseline", "no training in it", "Pass a longer one"
        )
    best, claim = report.best, report.claim
    sure = claim is not None and claim.difference - claim.half_width > 0 and not claim.obstacles
    if sure and best is not None:
        return best.recipe, "The best recipe is surely better than today's."
    if claim is None and best is not None and best.score > baseline.score:
        return best.recipe, "It scored best in the search, and was not confirmed by fresh seeds."
    return baseline.recipe, "No recipe is surely better than today's, so today's is kept."


class Tuned:
    """What `kbatch.tune` returns: the trained model, and how it was found.

    Attributes:
        model: The `keras.Model` that was passed, trained by `recipe` for the epochs asked for.
        history: `keras.callbacks.History` of that training.
        recipe: `Recipe`, the winner's; today's if nothing is surely better.
        report: `kbatch.results.Report`; a notebook shows it as the first screen of the page.
        folder: `pathlib.Path` of the records, tables, figures and the page.
    """

    def __init__(self, found: Found, folder: Path) -> None:
        self._found, self.folder = found, folder
        self.recipe, self.report = found.recipe, found.report
        self.history = found.trained()
        self.model = found.taken.call.model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the trained model, as `model.save` does; it loads where kbatch is not installed.

        Args:
            path: String or path that ends in `.keras`.
        """
        self.model.save(path)

    def to_code(self) -> str:
        """Return plain Keras code that trains by the recipe, with places for model and data."""
        records = self.report.records
        return code_of(self.folder, next(each for each in records if each.recipe == self.recipe))

    def __str__(self) -> str:
        return f"{self.report}\n{self._found.sentence}\nTrained by: {self.recipe}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


@in_one_frame
def tune(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    budget: str | float | None = None,
    seconds_per_trial: float | None = None,
    max_trials: int | None = None,
    space: Space | None = None,
    metric: str | None = None,
    direction: str | None = None,
    chance: float | None = None,
    confirm_seeds: int = 3,
    seed: int = 0,
    isolated: bool = False,
    directory: str | os.PathLike[str] = "kbatch-tune",
    **fit_arguments: Any,
) -> Tuned:
    """Find how to train a compiled model on this device, and train it so.

    Use it in place of `model.fit`. What `fit` would have done is the baseline. Recipes are searched
    and the best is confirmed with fresh seeds. Then the model is trained by it for the epochs asked
    for. If none is surely better than the baseline, the model is trained by that. The same call
    goes on with a search that was stopped.

    Args:
        model: Compiled `keras.Model`. Variables that were loaded or trained are where each training
            begins; the others are drawn afresh from each seed.
        x: As for `model.fit`.
        y: As for `model.fit`.
        budget: String such as `"10min"`, or a float of seconds, for search and confirmation.
            Defaults to `"10min"`, unless `max_trials` is given.
        seconds_per_trial: Float, training seconds of a trial. Defaults to those of the epochs
            asked for, at most a 24th of the budget.
        max_trials: Integer, the most recipes to try. Optional.
        space: `kbatch.Space` of recipes. Defaults to batch sizes, the model's own optimizer, SGD
            and Adam, and on a GPU policies and XLA.
        metric: String, the scored metric. Defaults to the model's accuracy, else its first metric,
            else `"val_loss"`.
        direction: `"max"` or `"min"`, for a metric that Keras does not know.
        chance: Float, the metric of a model that learned nothing, where it cannot be measured.
        confirm_seeds: Integer, fresh seeds of the confirmation; `0` for none. Defaults to `3`.
        seed: Integer, the seed of weights, order and search. Defaults to `0`.
        isolated: Boolean, whether each trial has a process of its own. Defaults to `False`.
        directory: Path of the folder of the search. Defaults to `"kbatch-tune"`.
        **fit_arguments: All other arguments of `model.fit`, such as `validation_data`,
            `batch_size`, `epochs`, `callbacks` and `class_weight`.

    Returns:
        A `Tuned`.

    Raises:
        KbatchError: If model, data or an argument cannot be used; the message says what to do.

    Example:
    ```python
    tuned = kbatch.tune(
        model, x, y, validation_data=(x_val, y_val), batch_size=32, epochs=5, budget="2min"
    )
    print(tuned)
    tuned.save("best.keras")
    ```
    """
    call = _call(model, x, y, fit_arguments)
    wishes = Wishes(
        budget=budget,
        seconds_per_trial=seconds_per_trial,
        max_trials=max_trials,
        space=space,
        metric=metric,
        direction=direction,
        chance=chance,
        confirm_seeds=confirm_seeds,
        seed=seed,
        isolated=isolated,
    )
    with keras_own_fit():
        taken = Taken.of(call, metric)
        print(taken.told, flush=True)
        found = searched(taken, wishes, Path(directory))
        return Tuned(found, Path(directory))


def _call(model: Any, x: Any, y: Any, others: Mapping[str, Any]) -> FitCall:
    unknown = sorted(set(others) - set(PARAMETERS.parameters))
    if unknown:
        raise SearchError(
            "kbatch.tune must be given arguments of model.fit, or its own",
            ", ".join(unknown),
            f"Pass {', '.join(list(PARAMETERS.parameters)[3:])}",
        )
    return FitCall.of(model, (x, y), others)
