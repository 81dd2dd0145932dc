"""Tuner of kbatch's own search, and what it takes from earlier searches."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import keras
import keras_tuner

from kbatch.callbacks import user_callbacks
from kbatch.errors import KbatchError, RecordError, SearchError, in_one_frame
from kbatch.hypermodel import HyperModel
from kbatch.hypermodel import objective as the_objective
from kbatch.model_spec import LEAST_SEED, ModelSpec
from kbatch.outcome import SCORED, STOPPED, Goal
from kbatch.recipe_words import whole_number
from kbatch.records import files, project
from kbatch.records.project import OWN, TUNER, Project
from kbatch.records.store import Record
from kbatch.results.loading import (
    folder_of,
    load_goal,
    load_race,
    load_records,
    load_validation_examples,
)
from kbatch.results.prospects import prospects_of
from kbatch.results.ranking import best_of, unranked
from kbatch.runtime import keras_tuner_private
from kbatch.search import portfolio, proposals, tuner_border
from kbatch.search.oracle import Oracle
from kbatch.search.proposals import Observation
from kbatch.search.rungs import gain_at_rung
from kbatch.search.tuner_border import border
from kbatch.space import Space
from kbatch.training import workers
from kbatch.training.arguments import seconds_of
from kbatch.training.workers import executor_of

SAME = ("signature", "metric", "direction")  # facts that must be those of the earlier search
AUTO = "auto"  # budget of a search that ends once more of it is not worth it
MOST_LEARNED = 8  # recipes of other searches: as many as a portfolio of LCBench was good with
LATE = 1.02  # a measurement follows its moment by an update


def observations(
    folder: str | os.PathLike[str], facts: Mapping[str, Any], space: list[Any]
) -> list[Observation]:
    """Return what an earlier search has seen, and print how much of it is of use.

    Trials that failed are left out, since another device may hold them, and those that the new
    space cannot draw.
    """
    before = project.load_facts(folder_of(folder)) or {}
    differing = [name for name in SAME if before.get(name) != facts.get(name)]
    if differing:
        words = ", ".join(f"another {name}" for name in differing)
        raise SearchError(
            "A warm start must come from a search of the same model by the same metric",
            f"{folder} with {words}",
            "Leave it out of warm_start",
        )
    goal = Goal.from_dict(facts["goal"])
    drawn = [each for each in load_records(folder) if not each.baseline]
    records = [each for each in drawn if each.values]
    # which tell nothing, but a new search draws them
    idle = {each.name: each.default for each in space if each.name in before.get("idle", ())}
    records = [dataclasses.replace(each, values={**idle, **each.values}) for each in records]
    found = [observation(record, goal, space) for record in records if _is_sound(record, space)]
    print(
        f"warm start: {len(found)} of {len(records)} trainings in {folder} are of use", flush=True
    )
    return found


def observation(record: Record, goal: Goal, space: list[Any]) -> Observation:
    """Return what an earlier training tells, at the horizon of the new search.

    Its curve is cut there. One that ends before counts as stopped, since nobody knows how it would
    have gone on.
    """
    curve = [each for each in record.outcome.curve if each[0] <= LATE * goal.seconds]
    outcome = dataclasses.replace(record.outcome, curve=tuple(curve))
    whole = record.outcome.train_seconds * LATE >= goal.seconds or goal.target is not None
    return Observation(
        proposals.completed(space, record.values),
        gain_at_rung(curve, goal.seconds, goal.gain),
        goal.score(outcome) if whole and outcome.ended in SCORED else None,
    )


def _is_sound(record: Record, space: list[Any]) -> bool:
    ended = record.outcome.ended in (*SCORED, STOPPED)
    return ended and proposals.can_draw(space, record.values)


def best_elsewhere(folders: Sequence[Any], space: Space) -> list[dict[str, Any]]:
    """Return the best recipes of finished searches as values, and print them.

    What was the best of the most searches comes first. Of more than `MOST_LEARNED` the last are
    left out.
    """
    found: list[dict[str, Any]] = []
    for folder in folders:
        records = load_records(folder)
        best = best_of(records, load_race(folder).dropped)
        if best is None:
            raise RecordError(
                f"{folder} must hold a trial that did not fail or stop at a rung",
                *unranked(records),
            )
        values, _ = tuner_border.drawable(space, best.recipe)
        found.append(values)
        drawn = ", ".join(f"{name} {value}" for name, value in values.items())
        print(
            f"learned: the best of {folder} was {best.recipe}; "
            f"of it this space draws {drawn or 'nothing'}",
            flush=True,
        )
    distinct = [values for place, values in enumerate(found) if values not in found[:place]]
    return sorted(distinct, key=lambda values: -found.count(values))[:MOST_LEARNED]


def of_portfolio(hypermodel: HyperModel) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the recipes of the portfolio as values, and a line of each or why none is tried."""
    terms, search = hypermodel.terms, hypermodel.running
    if search is None:
        return [], []
    model = terms.default_model(terms.model_maker.hyperparameters())
    unlike = portfolio.why_not(model, search.data.training.element_spec)
    if unlike:
        return [], [f"portfolio: not tried, since {unlike}"]
    found = portfolio.recipes_for(hypermodel.space)
    lines = [f"portfolio: early trial of {each} ({each.reason})" for each in found]
    return [each.values() for each in found], lines


UNTITLED = "untitled_project"  # what KerasTuner calls a project without a name


class Tuner(keras_tuner.Tuner):
    """A KerasTuner tuner that stops poor trials early, and proposes by what it has seen.

    Use it instead of a stock tuner, which goes on working with a `kbatch.HyperModel`. It begins
    with the baseline, kbatch's default recipe, recipes that were good on other tasks and variations
    of the baseline: recipes that differ in one axis of two values, or of values without an order,
    such as the optimizer. Random recipes follow, and then those of a model of what it has seen
    (Optuna's tree-structured Parzen estimator). Every second one is a variation of the recipe that
    leads by then. Poor trials are stopped at a third of the horizon. A recipe that
    leads by one training only is trained again with another seed, and recipes are ranked by their
    mean scores. Nothing else is proposed twice.

    `get_best_hyperparameters`, `results_summary`, callbacks and resuming are KerasTuner's, and
    `kbatch.confirm`, `kbatch.report` and `kbatch.best_recipe` take the tuner as any other. A trial
    that was stopped has no weights worth loading and is never among the best.

    Args:
        build: See `kbatch.HyperModel`; or a `kbatch.HyperModel`, which has the other arguments of
            a hypermodel already.
        space: `Space` of recipes. Defaults to `Space()`.
        seconds_per_trial: Float, the horizon: training seconds of a trial that is not stopped.
            Without it, `search` takes `epochs=E`; see `kbatch.HyperModel`.
        directory: String, folder of the project. Defaults to the current one.
        project_name: String, name of the project in it. Defaults to `"untitled_project"`.
        overwrite: Boolean, whether to begin anew instead of resuming. Defaults to `False`.
        tuner_seed: Integer, seed of what is proposed. Defaults to `0`.
        warm_start: Path of the project of an earlier search of the same model, or a list of them:
            what they have seen tells what to propose. Optional.
        learn_from: Path of the finished search of another model, or a list of them: the best recipe
            of each is tried early, as far as the space can draw it. Behind them come up to four
            recipes that were good on 20 tasks of tables, series and text, if the examples are no
            pictures and the weights are new. Defaults to `None`, these alone; `()` tries none.
        executor: `"local"` to train in a worker process for each GPU of this machine, several
            recipes at once; `"ray"` for a Ray cluster; or an `Executor`, such as
            `kbatch.LocalExecutor(workers=2)`. Data and callbacks must travel there. Defaults to
            `None`, this process. A `kbatch.HyperModel` that was passed keeps it.
        distribution_strategy: `tf.distribute.Strategy` of several GPUs. Optional.
        budget: As for `search`, for searches that are given none. Optional.
        max_trials: As for `search`, for searches that are given none. Optional.
        objective: `kbatch.objective()`, as a stock tuner takes it, which is the default.
        **arguments: The other arguments of `kbatch.HyperModel`, such as `metric`, `max_batch`,
            `loss` and `seed`.

    Raises:
        KbatchError: If an argument cannot be used.

    Example:
    ```python
    tuner = kbatch.Tuner(build, seconds_per_trial=60, directory="runs", project_name="pets")
    tuner.search(x, y, validation_data=(x_val, y_val), budget="30min")
    print(kbatch.best_recipe(tuner))
    ```
    """

    @in_one_frame
    def __init__(
        self,
        build: Callable[..., keras.Model] | keras_tuner.HyperModel | ModelSpec | HyperModel,
        space: Space | None = None,
        *,
        seconds_per_trial: float | None = None,
        directory: str | os.PathLike[str] | None = None,
        project_name: str | None = None,
        overwrite: bool = False,
        tuner_seed: int = 0,
        warm_start: Any = (),
        learn_from: Any = None,
        executor: Any = None,
        distribution_strategy: Any = None,
        budget: str | float | None = None,
        max_trials: int | None = None,
        objective: Any = None,
        **arguments: Any,
    ) -> None:
        _check_objective(objective)
        self._end = (budget, max_trials)
        self._ends_by_value = False
        if self._end != (None, None):
            _end_of(*self._end)
        own = {"space": space, "seconds_per_trial": seconds_per_trial, **arguments}
        hypermodel = build if isinstance(build, HyperModel) else HyperModel(build, **own)
        given = sorted(name for name, value in own.items() if value is not None)
        if hypermodel is build and given:
            raise SearchError(
                "A kbatch.HyperModel must come without arguments of its own",
                f"{', '.join(given)} beside it",
                "Pass them to the HyperModel",
            )
        if executor is not None:
            hypermodel.train_in(executor_of(executor))
        _check_kinds(directory, project_name, overwrite, tuner_seed)
        self._warm_start = _folders(warm_start, "warm_start")
        self._learn_from = _folders(learn_from, "learn_from")
        self._has_portfolio = learn_from is None or bool(self._learn_from)
        _prepare(Path(directory or ".") / (project_name or UNTITLED))
        super().__init__(
            # KerasTuner takes 0 for no seed at all
            oracle=Oracle(objective=the_objective(), seed=tuner_seed + 1),
            hypermodel=hypermodel,
            directory=directory,
            project_name=project_name,
            overwrite=overwrite,
            distribution_strategy=distribution_strategy,
        )

    def search(
        self,
        *args: Any,
        budget: str | float | None = None,
        max_trials: int | None = None,
        **fit_arguments: Any,
    ) -> None:
        """Search until the budget is spent or so many trials were begun.

        Args:
            *args: `x` and `y`, as for Keras' `fit`.
            budget: String such as `"30min"`, `"2h"` or `"90s"`, or a float of seconds, from now on:
                no trial is begun after it. `"auto"` ends the search once ten more horizons raise
                the best score by less than a confirmation could tell; see
                `kbatch.results.prospects`. Defaults to that of the tuner.
            max_trials: Integer, trials of the project in all, those of an earlier search included.
                Defaults to that of the tuner.
            **fit_arguments: As for a stock tuner's `search`, such as `validation_data`.

        Raises:
            SearchError: If there is neither a budget nor a number of trials, or one cannot be used.
            KbatchError: If data or other arguments cannot be used.
        """
        if budget is None and max_trials is None:
            budget, max_trials = self._end
        seconds = _end_of(budget, max_trials)
        self._ends_by_value = budget == AUTO
        self.oracle.most_trials = max_trials
        self.oracle.ends_at = time.monotonic() + seconds
        try:
            super().search(*args, **fit_arguments)
        except KeyboardInterrupt as error:
            if sys.version_info >= (3, 11):
                error.add_note(
                    f"Trials that had finished are kept in {self.project_dir}: a tuner of the same "
                    "folder goes on where this one ended, unless it has overwrite=True"
                )
            raise

    def beside(self, *args: Any, **fit_arguments: Any) -> AbstractContextManager[Any]:
        """Return a context in which other threads search too, one for each further worker."""
        search = self.hypermodel.running
        if search is None or self.hypermodel.terms.workers == 1:
            return nullcontext()
        with border():
            search.baseline()

        def work(number: int) -> None:
            name = f"{self.tuner_id}-{number}"
            keras_tuner_private.search_as(self, name, args, fit_arguments)

        keras_tuner_private.unlock(self.oracle)
        return workers.beside(search.trainer, work, search.trainer.close_idle)

    def run_trial(self, trial: Any, *args: Any, **fit_arguments: Any) -> Any:
        """Build and train a trial; KerasTuner calls this."""
        if self.hypermodel.terms.workers > 1:
            # trials at once would write to the same files
            own = fit_arguments.get("callbacks") or []
            fit_arguments["callbacks"] = user_callbacks.copies_of_callbacks(
                own, f"trial-{trial.trial_id}"
            )
        return super().run_trial(trial, *args, **fit_arguments)

    def reload(self) -> None:
        """Take up an earlier search where it ended; KerasTuner calls this."""
        project = Path(self.project_dir)
        broken = files.first_broken(project)
        if broken is not None:
            raise _broken(broken)
        try:
            super().reload()
            go_through(self.oracle, self.hypermodel)
        except (KbatchError, keras_tuner.errors.FatalError):
            raise
        except Exception as error:  # KerasTuner raises any kind on states that it did not write
            raise _broken(project / "oracle.json") from error

    def on_search_begin(self) -> None:
        """Take up what earlier searches have seen; KerasTuner calls this."""
        super().on_search_begin()
        facts, seen = Project(self.project_dir).facts(), []
        for folder in self._warm_start:
            seen += observations(folder, facts, self.oracle.get_space().space)
        self.oracle.know_earlier(seen)
        best = best_elsewhere(self._learn_from, self.hypermodel.space)
        if self._has_portfolio:
            found, lines = of_portfolio(self.hypermodel)
            best += found
            if lines and not self.oracle.start_order:  # a search that goes on has told them
                print(*lines, sep="\n", flush=True)
        self.oracle.learn(best[:MOST_LEARNED])
        Project(self.project_dir).note({TUNER: OWN})
        self._end_by_value()

    def on_trial_end(self, trial: Any) -> None:
        """End a trial, and the search if more is not worth it; KerasTuner calls this."""
        super().on_trial_end(trial)
        self._end_by_value()

    def _end_by_value(self) -> None:
        """Begin no other trial if a confirmation could not tell what more search brings."""
        if not self._ends_by_value:
            return
        records = Project(self.project_dir).store.records()
        if not records:
            return
        goal = load_goal(self)
        found = prospects_of(records, goal, load_validation_examples(self))
        if found is not None and not found.is_worth_it:
            self.oracle.most_trials = len(self.oracle.start_order)
            print(f"The search ends. {found.words(goal.seconds)}", flush=True)


def go_through(oracle: keras_tuner.Oracle, hypermodel: HyperModel) -> None:
    """Use a restored state as a search will; an error means that its files are broken."""
    declared = keras_tuner.HyperParameters()
    hypermodel.declare_hyperparameters(declared)
    oracle.update_space(declared)
    for axis in oracle.get_space().space:
        proposals.check(axis)
    for name in dict.fromkeys((*oracle.start_order, *oracle.end_order)):
        values = oracle.trials[name].hyperparameters
        hypermodel.space.recipe(values)
        proposals.check_values(values)
    oracle.get_best_trials(1)


def _check_kinds(directory: Any, project_name: Any, overwrite: Any, tuner_seed: Any) -> None:
    """Refuse values of another kind, of which KerasTuner would make something else."""
    if not isinstance(directory, (str, os.PathLike, type(None))):
        raise SearchError("`directory` must be the path of a folder", directory, 'Pass "runs", say')
    if not isinstance(project_name, (str, type(None))):
        raise SearchError("`project_name` must be a string", project_name, 'Pass "pets", say')
    if not isinstance(overwrite, bool):
        raise SearchError("`overwrite` must be True or False", overwrite, "Leave it out to resume")
    if whole_number(tuner_seed, LEAST_SEED) is None:
        raise SearchError("`tuner_seed` must be a whole number", tuner_seed, "Pass 0, say")


def _folders(given: Any, name: str) -> list[Any]:
    """The projects to begin from, as a list."""
    if isinstance(given, (str, os.PathLike)):
        given = [given]
    if not isinstance(given, (list, tuple, type(None))):
        raise SearchError(
            f"`{name}` must be the path of a project, or a list of them",
            given,
            'Pass "runs/pets", say',
        )
    for each in given or ():
        _check_search(each, name)
    return list(given or ())


def _check_search(folder: Any, name: str) -> None:
    """Refuse what holds no search, before anything is written."""
    try:
        folder_of(folder)
    except RecordError as error:
        raise SearchError(
            f"`{name}` must hold searches: {error.must}", error.received, error.do
        ) from error


def _prepare(project: Path) -> None:
    """Make the folder of a project, in which KerasTuner reads, writes and removes files."""
    files.check_no_links(project)
    try:
        project.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.refusal(error, project) from error


def _broken(file: Path) -> RecordError:
    return RecordError(
        "KerasTuner's own files must be as it writes them, to resume a search",
        f"{file}, which is not",
        "Restore it, pass overwrite=True, or take another project_name; kbatch.report reads the "
        "trainings of this one",
    )


def _end_of(budget: Any, max_trials: Any) -> float:
    """Return the seconds of a budget, and refuse an end of a search that cannot be used."""
    if budget is None and max_trials is None:
        raise SearchError(
            "A search must be given an end",
            "neither budget nor max_trials",
            'Pass budget="30min" or max_trials=20, say',
        )
    if max_trials is not None and (whole_number(max_trials) or 0) < 1:
        raise SearchError(
            "`max_trials` must be a whole number of at least 1", max_trials, "Pass 20, say"
        )
    return float("inf") if budget in (None, AUTO) else seconds_of(budget, AUTO)


def _check_objective(objective: Any) -> None:
    """Refuse an objective that is not the score."""
    own = the_objective()
    said = (getattr(objective, "name", None), getattr(objective, "direction", None))
    if objective is None or said == (own.name, own.direction):
        return
    raise SearchError(
        "kbatch.Tuner must search for the score of kbatch.objective()",
        f"objective={objective!r}",
        "Leave it out, and pass metric= to score another value per second",
    )
