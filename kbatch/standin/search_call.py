"""Search call: a KerasTuner tuner of a script's own searches by kbatch's score, as it is."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import keras_tuner

from kbatch.data.streams import inputs_of
from kbatch.hypermodel import HyperModel, objective
from kbatch.models.maker import fresh_hyperparameters
from kbatch.models.preprocessor import preprocess_of, put_back, take_off
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.recipe_words import TUNED_OPTIMIZERS
from kbatch.records.project import Project
from kbatch.runtime.users_code import users_frame
from kbatch.search import tuner_border
from kbatch.space import Space
from kbatch.standin import winner
from kbatch.standin.fit_call import KERAS_FIT, FitCall, keras_own_fit
from kbatch.standin.script_hypermodel import AsItIs, ScriptHyperModel
from kbatch.standin.taken import left_out, readable_arguments
from kbatch.standin.tuned import SEARCH, Wishes, complete, trial_seconds
from kbatch.training.arguments import FitArguments
from kbatch.training.pace import RunOptions
from kbatch.training.progress import LivePage, bars_of

STOCK = "keras_tuner.src.tuners.", "keras_tuner.src.engine."  # whose trials are a `fit` each
BASE = keras_tuner.engine.base_tuner.BaseTuner


@dataclass
class TunerTaker:
    """Lets the tuners of a script search for kbatch.

    Each keeps its oracle and its trials. Its hypermodel becomes a `kbatch.HyperModel` over the
    script's own, and its objective the score.

    Attributes:
        wishes: `Wishes`.
        folder: Path of the results of the first tuner.
        told: Function that is given sentences on what is taken; it may end the script.
        ended: Function that is given a tuner and its folder when its search has ended; it may end
            the script.
        tuners: List of the tuners that were taken.
        searched: Boolean, whether a tuner has searched.
        stayed: Boolean, whether a tuner searched as it is.
        closed: Boolean, whether tuners that are made from now on search as they are.
    """

    wishes: Wishes
    folder: Path
    told: Callable[[str], None]
    ended: Callable[[Any, Path], None]
    tuners: list[Any] = field(default_factory=list)
    searched: bool = False
    stayed: bool = False
    closed: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _reasons: dict[int, str] = field(default_factory=dict)  # by tuner, why it stays as it is

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Take the tuners that are made inside of the `with` block."""
        begin, search = BASE.__init__, BASE.search
        signature = inspect.signature(begin)

        def begun(tuner: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(tuner, *args, **kwargs)
            given = dict(bound.arguments)
            more = given.pop("kwargs", {})
            given.pop("self")
            begin(tuner, **{**given, **self._begun(tuner, given)}, **more)

        def searching(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            with keras_own_fit():
                if tuner in self.tuners:
                    return self._search(search, tuner, args, kwargs)
                self.stayed = True
                if not self.closed:
                    why = self._reasons.get(id(tuner), "its hypermodel is kbatch's already")
                    self.told(f"{type(tuner).__name__} searches as it is: {why}.")
                self.searched = self.searched or isinstance(tuner.hypermodel, HyperModel)
                return search(tuner, *args, **kwargs)

        BASE.__init__, BASE.search = begun, searching
        try:
            with self._stack:
                yield
        finally:
            BASE.__init__, BASE.search = begin, search

    def _begun(self, tuner: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a tuner is given in place of what the script says; empty for one that stays."""
        own, oracle = given.get("hypermodel"), given["oracle"]
        if isinstance(own, HyperModel):
            return {}
        why = self._why_not(tuner, own, oracle)
        if why or self.closed:
            self._reasons[id(tuner)] = why
            return {}
        objective_of_script = oracle.objective
        metric = self.wishes.metric or objective_of_script.name
        own_direction = getattr(objective_of_script, "direction", None)
        direction = self.wishes.direction or (None if self.wishes.metric else own_direction)
        hypermodel = ScriptHyperModel(
            AsItIs(own),
            Space(**{"optimizer": TUNED_OPTIMIZERS, **self.wishes.axes}),
            metric=metric,
            direction=direction,
            chance=self.wishes.chance,
            seed=self.wishes.seed,
            isolated=self.wishes.isolated,
        )
        oracle.objective = objective()
        if not oracle.tune_new_entries:  # those of kbatch are tuned none the less
            hypermodel.space.declare(oracle.hyperparameters)
        frame = users_frame()
        if frame is not None:
            hypermodel.place = (frame.f_code.co_filename, frame.f_lineno)
            self._stack.enter_context(hypermodel.in_place_of(frame.f_globals))
        self.tuners.append(tuner)
        folder = self._folder_of(tuner)
        hypermodel.directory = str(folder / SEARCH)
        # the same command goes on, whatever the script says of its own folder
        return {
            "hypermodel": hypermodel,
            "directory": str(folder),
            "project_name": SEARCH,
            "overwrite": False,
        }

    def _why_not(self, tuner: Any, own: Any, oracle: Any) -> str:
        """Why a tuner stays as it is; empty for one that is taken."""
        if own is None or not type(tuner).run_trial.__module__.startswith(STOCK):
            return "its run_trial is its own"
        if self.wishes.metric is not None:
            return ""
        name = getattr(oracle.objective, "name", None)
        if type(oracle.objective) is keras_tuner.Objective and str(name).startswith("val_"):
            return ""
        return "its objective is not one metric on validation data (--metric names one)"

    def _folder_of(self, tuner: Any) -> Path:
        number = self.tuners.index(tuner) + 1
        name = self.folder.name
        return self.folder if number == 1 else self.folder.with_name(f"{name}-{number}")

    def _search(self, search: Callable[..., Any], tuner: Any, args: Any, kwargs: Any) -> None:
        began = time.monotonic()
        hypermodel, wishes, folder = tuner.hypermodel, self.wishes, self._folder_of(tuner)
        maker, own_fit = hypermodel.terms.model_maker, hypermodel.own_fit
        if wishes.validation_split is not None and "validation_data" not in kwargs:
            kwargs = {"validation_split": wishes.validation_split, **kwargs}
        call = own_fit.call(fresh_hyperparameters(maker.today), args, kwargs)
        is_hyperband = tuner_border.is_hyperband(tuner)
        hypermodel.says_epochs = is_hyperband or "epochs" in kwargs
        epochs = tuner.oracle.max_epochs if is_hyperband else call.epochs
        batch_size = hypermodel.terms.space.baseline.batch_size
        found = own_fit.batch(maker.today, args, kwargs).today
        today = Recipe(batch_size=found if batch_size == Recipe().batch_size else batch_size)
        self.told("\n".join(_sentences(tuner, call, epochs, today.batch_size, folder)))
        self.searched = True
        hypermodel.watcher = LivePage(folder, bars_of(1))
        arguments, _ = readable_arguments(call)
        project = Path(tuner.project_dir)
        hypermodel.train_for(
            wishes.seconds_per_trial
            or trial_seconds(maker, today, arguments, epochs, wishes, project)
        )
        left = {name: value for name, value in kwargs.items() if name != "epochs"}

        def searching() -> None:
            tuner_border.end(tuner, wishes.search_seconds(began), wishes.max_trials)
            search(tuner, *args, **{**left, "verbose": 0})

        complete(tuner, searching, wishes, folder, began)
        _name_rates(tuner)
        self.ended(tuner, folder)

    def fit(self, call: FitCall) -> keras.callbacks.History:
        """Train a model of the script's own call, by its recipe if a tuner built it for one."""
        for tuner in self.tuners:
            recipe = tuner.hypermodel.recipe_of(call.model)
            if recipe is not None:
                return _trained(call, tuner, recipe)
        place = "" if call.place is None else f" of line {call.place[1]}"
        print(
            f"fit{place} trains as it is: no recipe is known for its model. Build it with "
            "tuner.hypermodel.build(hp) for that.",
            flush=True,
        )
        return KERAS_FIT(call.model, **call.arguments)


def _name_rates(tuner: Any) -> None:
    """Let a script read the rate that a trial trained with, where its `build` has one."""
    if tuner_border.RATE_OF_BUILD not in tuner.hypermodel.of_axes:
        return
    trials = {int(number): trial for number, trial in tuner.oracle.trials.items()}
    for record in Project(tuner.project_dir).store.records():
        trial = trials.get(record.trial)
        if record.purpose == "search" and trial is not None:
            rate = record.outcome.learning_rate
            trial.hyperparameters.values[tuner_border.RATE_OF_BUILD] = rate


def _sentences(
    tuner: Any, call: FitCall, epochs: int, batch_size: int, folder: Path
) -> Iterator[str]:
    """What was taken, in words."""
    frame = users_frame()
    where = "" if frame is None else f" of {frame.f_code.co_filename}, line {frame.f_lineno}"
    hypermodel = tuner.hypermodel
    yield (
        f"Taken: search{where}: {type(tuner).__name__} of KerasTuner, batch {batch_size}, "
        f"{epochs} epochs, scored by {hypermodel.terms.judged_by['metric']}."
    )
    names = {each.name for each in tuner.oracle.get_space().space}
    axes = sorted(names & hypermodel.space.reserved)
    own = sorted(names - hypermodel.space.reserved)
    yield f"It draws {', '.join(axes)} of kbatch's, and {', '.join(own) or 'none'} of its own."
    yield f"Its trials are in {folder}, and go on there; its own directory stays as it is."
    for note in left_out(call):
        yield f"{note}."


def _trained(call: FitCall, tuner: Any, recipe: Recipe) -> keras.callbacks.History:
    hypermodel, model = tuner.hypermodel, call.model
    maker = hypermodel.terms.model_maker
    print(f"Trained by: {recipe}", flush=True)
    found, _ = readable_arguments(call)
    arguments = FitArguments.parse((), found)
    read = (lambda: inputs_of(model)), preprocess_of(model)
    validated = found.get("validation_data") is not None or found.get("validation_split")
    data = arguments.data(*read) if validated else None
    training = arguments.training(*read) if data is None else data.training
    options = RunOptions(
        maker.seed,
        maker.own_policy,
        class_weight=arguments.class_weight,
        verbose=call.arguments["verbose"],
        examples=call.epochs * training.examples,
    )
    validation = None if data is None else data.validation
    goal = Goal.from_dict(Project(tuner.project_dir).facts()["goal"])
    take_off(model)
    try:
        history = winner.fit(model, recipe, training, validation, goal, options, call)
    finally:
        put_back(model)
    model.history = history
    model.train_function = model.test_function = None  # see `winner.trained`
    return history
