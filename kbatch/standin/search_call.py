"""Search call: a KerasTuner tuner of a script's own searches by kbatch's score, as it is."""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import keras_tuner

from kbatch.data.streams import inputs_of
from kbatch.errors import SearchError
from kbatch.hypermodel import HyperModel, objective
from kbatch.models.maker import fresh_hyperparameters
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED
from kbatch.records.project import Project
from kbatch.runtime.users_code import users_frame
from kbatch.search import tuner_border
from kbatch.space import Space
from kbatch.standin import winner
from kbatch.standin.fit_call import KERAS_FIT, FitCall, keras_own_fit
from kbatch.standin.own_fit import OwnFit
from kbatch.standin.taken import readable_arguments
from kbatch.standin.tuned import SEARCH, Wishes, complete, trial_seconds
from kbatch.training.arguments import FitArguments
from kbatch.training.pace import RunOptions
from kbatch.training.progress import LivePage, bars_of

BASE = keras_tuner.engine.base_tuner.BaseTuner


class _AsItIs(keras_tuner.HyperModel):
    """A hypermodel of the user's, which counts as one that trains by itself.

    So what `search` is given reaches `model.fit` as it would, batch size and steps included.
    """

    def __init__(self, own: Any) -> None:  # of KerasTuner, or a function `build(hp)`
        super().__init__()
        self._own = own
        self._is_function = not isinstance(own, keras_tuner.HyperModel)

    def declare_hyperparameters(self, hp: Any) -> None:
        if not self._is_function:
            self._own.declare_hyperparameters(hp)

    def build(self, hp: Any) -> keras.Model:
        return self._own(hp) if self._is_function else self._own.build(hp)

    def fit(self, hp: Any, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if self._is_function:
            return model.fit(*args, **kwargs)
        return self._own.fit(hp, model, *args, **kwargs)


class _Noting(HyperModel):
    """A hypermodel that notes for which recipe each model of its own was built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own_fit = OwnFit.of(args[0])
        self.place = ("", 0)  # the file and the line where the tuner was made
        self.recipes: weakref.WeakKeyDictionary[keras.Model, Recipe] = weakref.WeakKeyDictionary()

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        with warnings.catch_warnings():
            if not tuner_border.called_by_a_tuner():  # its `fit` trains by the whole recipe
                warnings.simplefilter("ignore", UserWarning)
            model = super().build(hp)
        recipe = self.space.recipe(hp)
        self.recipes[model] = self.terms.fitted(recipe) or recipe
        return model


@dataclass
class TunerTaker:
    """Lets the tuners of a script search for kbatch.

    Each keeps its oracle and its trials. Its hypermodel becomes a `kbatch.HyperModel` over the
    script's own, and its objective the score.

    Attributes:
        wishes: `Wishes`.
        folder: Path of the results.
        told: Function that is given the sentence on what is taken; it may end the script.
        ended: Function that is given the tuner when its search has ended; it may end the script.
        tuners: List of the tuners that were taken.
        searched: Boolean, whether one of them has searched, or one that is kbatch's already.
    """

    wishes: Wishes
    folder: Path
    told: Callable[[str], None]
    ended: Callable[[Any], None]
    tuners: list[Any] = field(default_factory=list)
    searched: bool = False

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
                self.searched = self.searched or isinstance(tuner.hypermodel, HyperModel)
                return search(tuner, *args, **kwargs)

        BASE.__init__, BASE.search = begun, searching
        try:
            yield
        finally:
            BASE.__init__, BASE.search = begin, search

    def _begun(self, tuner: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a tuner is given in place of what the script says; empty for one that stays."""
        own = given.get("hypermodel")
        if own is None or isinstance(own, HyperModel):
            return {}
        if not type(tuner).run_trial.__module__.startswith("keras_tuner."):
            print(
                f"{type(tuner).__name__} searches as it is: its run_trial is its own.", flush=True
            )
            return {}
        oracle = given["oracle"]
        metric, direction = self._judged_by(oracle.objective)
        hypermodel = _Noting(
            _AsItIs(own),
            Space(**{"optimizer": (COMPILED, "sgd", "adam"), **self.wishes.axes}),
            metric=metric,
            direction=direction,
            chance=self.wishes.chance,
            seed=self.wishes.seed,
            isolated=self.wishes.isolated,
        )
        oracle.objective = objective()
        frame = users_frame()
        if frame is not None:
            hypermodel.place = (frame.f_code.co_filename, frame.f_lineno)
        self.tuners.append(tuner)
        number = len(self.tuners)
        return {
            "hypermodel": hypermodel,
            "directory": str(self.folder),
            "project_name": SEARCH if number == 1 else f"{SEARCH}-{number}",
            "overwrite": False,  # the same command goes on
        }

    def _judged_by(self, own: Any) -> tuple[str, str | None]:
        """The metric and the direction of a script's objective."""
        if self.wishes.metric is not None:
            return self.wishes.metric, self.wishes.direction
        if type(own) is not keras_tuner.Objective:
            raise SearchError(
                "The tuner of a script must have one metric as its objective",
                type(own).__name__,
                "Pass --metric val_accuracy, say",
            )
        return own.name, self.wishes.direction or own.direction

    def _search(self, search: Callable[..., Any], tuner: Any, args: Any, kwargs: Any) -> None:
        began = time.monotonic()
        hypermodel, wishes = tuner.hypermodel, self.wishes
        maker, own_fit = hypermodel.terms.model_maker, hypermodel.own_fit
        call = own_fit.call(fresh_hyperparameters(maker.today), args, kwargs)
        epochs = call.epochs
        if tuner_border.is_hyperband(tuner):
            epochs = tuner.oracle.max_epochs
        self.told(_words(tuner, epochs))
        self.searched = True
        hypermodel.watcher = LivePage(self.folder, bars_of(1))
        today = Recipe(batch_size=own_fit.batch(maker.today, args, kwargs).today)
        arguments, _ = readable_arguments(call)
        folder = Path(tuner.project_dir)
        hypermodel.last(
            wishes.seconds_per_trial
            or trial_seconds(maker, today, arguments, epochs, wishes, folder)
        )
        left = {name: value for name, value in kwargs.items() if name != "epochs"}

        def searching() -> None:
            tuner_border.end(tuner, wishes.search_seconds(began), wishes.max_trials)
            search(tuner, *args, **{**left, "verbose": 0})

        complete(tuner, searching, wishes, self.folder, began)
        self.ended(tuner)

    def fit(self, call: FitCall) -> keras.callbacks.History:
        """Train a model of the script's own call, by its recipe if a tuner built it for one."""
        for tuner in self.tuners:
            if call.model in tuner.hypermodel.recipes:
                return _trained(call, tuner)
        print("A model that tuner.hypermodel did not build trains as it is.", flush=True)
        return KERAS_FIT(call.model, **call.arguments)


def _words(tuner: Any, epochs: int) -> str:
    frame = users_frame()
    where = "" if frame is None else f" of {frame.f_code.co_filename}, line {frame.f_lineno}"
    metric = tuner.hypermodel.terms.judged_by["metric"]
    return (
        f"Taken: search{where}: {type(tuner).__name__} of KerasTuner, {epochs} epochs, scored by "
        f"{metric}."
    )


def _trained(call: FitCall, tuner: Any) -> keras.callbacks.History:
    hypermodel, model = tuner.hypermodel, call.model
    recipe, maker = hypermodel.recipes[model], hypermodel.terms.model_maker
    print(f"Trained by: {recipe}", flush=True)
    found, _ = readable_arguments(call)
    arguments = FitArguments.parse((), found)
    validated = found.get("validation_data") is not None or found.get("validation_split")
    data = arguments.data(lambda: inputs_of(model)) if validated else None
    training = arguments.training(lambda: inputs_of(model)) if data is None else data.training
    options = RunOptions(
        maker.seed,
        maker.own_policy,
        class_weight=arguments.class_weight,
        verbose=call.arguments["verbose"],
        examples=call.epochs * training.examples,
    )
    validation = None if data is None else data.validation
    goal = Goal.from_dict(Project(tuner.project_dir).facts()["goal"])
    history = winner.fit(model, recipe, training, validation, goal, options, call)
    model.history = history
    model.train_function = model.test_function = None  # see `winner.trained`
    return history
