"""Script hypermodel: the hypermodel of a script's own tuner, searched by kbatch."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import keras_tuner

from kbatch.axes import AXIS
from kbatch.hypermodel import HyperModel
from kbatch.models.maker import GuardedHyperParameters
from kbatch.recipe import Recipe
from kbatch.records.project import Project
from kbatch.search.tuner_border import called_by_a_tuner
from kbatch.standin.own_fit import OwnFit
from kbatch.training.metrics import direction_of


class AsItIs(keras_tuner.HyperModel):
    """A hypermodel of the user's, which counts as one that trains by itself.

    So what `search` is given reaches `model.fit` as it would, batch size and steps included.

    Args:
        own: `keras_tuner.HyperModel`, or a function `build(hp)`.
    """

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own
        self.is_function = not isinstance(own, keras_tuner.HyperModel)
        self._own_build = own if self.is_function else own.build

    def declare_hyperparameters(self, hp: Any) -> None:
        """Declare what the user's hypermodel declares."""
        if not self.is_function:
            self.own.declare_hyperparameters(hp)

    def build(self, hp: Any) -> keras.Model:
        """Return the user's model."""
        return self._own_build(hp)

    def fit(self, hp: Any, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Train a model as the user's hypermodel does."""
        if self.is_function:
            return model.fit(*args, **kwargs)
        return self.own.fit(hp, model, *args, **kwargs)


class ScriptHyperModel(HyperModel):
    """A `kbatch.HyperModel` over a script's, which notes for which recipe a model was built.

    What else the script asks of its hypermodel, its own answers.

    Attributes:
        as_it_is: `AsItIs`.
        own_fit: `OwnFit`.
        place: The file and the line where the tuner was made.
        directory: String, the folder of the tuner's project; empty before there is one.
        says_epochs: Boolean, whether its search tells how long a trial is.
    """

    def __init__(self, as_it_is: AsItIs, *args: Any, **kwargs: Any) -> None:
        self.as_it_is = as_it_is
        super().__init__(as_it_is, *args, **kwargs)
        self.own_fit = OwnFit.of(as_it_is)
        self.place, self.directory, self.says_epochs = ("", 0), "", True
        self._recipes: weakref.WeakKeyDictionary[keras.Model, Recipe] = weakref.WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "as_it_is" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.as_it_is.own, name)

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Return a model for a trial, or for the recipe of one that has ended."""
        if called_by_a_tuner():
            model = super().build(hp)
        else:
            with warnings.catch_warnings():  # of what it lacks: its `fit` trains by all of it
                warnings.simplefilter("ignore", UserWarning)
                model = super().build(hp)
        self._recipes[model] = self._recipe(hp)
        return model

    def fit(self, hp: Any, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Train a model: of a trial, or of the script's own call."""
        if called_by_a_tuner():
            return super().fit(hp, model, *args, **kwargs)
        return self.as_it_is.fit(hp, model, *args, **kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that a `kbatch.HyperModel` in the script needs for the same search."""
        judged, found = self.terms.judged_by, dict[str, Any]()
        if judged["metric"] != "val_accuracy":
            found["metric"] = judged["metric"]
        if direction_of(judged["metric"].removeprefix("val_")) is None:
            found["direction"] = judged["direction"]
        if judged["chance"] is not None:
            found["chance"] = judged["chance"]
        if not self.says_epochs:
            found["seconds_per_trial"] = self.terms.seconds_per_trial
        return found

    def recipe_of(self, model: keras.Model) -> Recipe | None:
        """Return the recipe that a model was built for; `None` for a model of another origin."""
        return self._recipes.get(model)

    def _recipe(self, hp: keras_tuner.HyperParameters) -> Recipe:
        """The recipe of a trial with these values, as it was trained by."""
        records = Project(self.directory).store.records() if self.directory else []
        for record in records:
            same = all(hp.values.get(name) == value for name, value in record.values.items())
            if record.purpose == "search" and same:
                return record.recipe
        recipe = self.space.recipe(hp)
        return self.terms.fitted(recipe) or recipe

    @contextlib.contextmanager
    def in_place_of(self, names: dict[str, Any]) -> Iterator[None]:
        """Let the script's own `build` build by the recipe where it is given a trial's values.

        Scripts end in `build_model(best_hps)`, which would else leave out the recipe.

        Args:
            names: The global names of the script.
        """
        own = self.as_it_is.own
        with contextlib.ExitStack() as stack:
            if self.as_it_is.is_function:
                routed = self._routed(own)
                for name in [name for name, value in names.items() if value is own]:
                    names[name] = routed
                    stack.callback(names.__setitem__, name, own)
            else:
                before, kind = own.build, type(own)
                own.build = self._routed(before)
                stack.callback(setattr, own, "build", before)
                if "build" in vars(kind):  # scripts make another one too
                    stack.callback(setattr, kind, "build", kind.build)
                    kind.build = self._routed_method(kind.build)
            yield

    def _routed(self, build: Any) -> Any:
        @functools.wraps(build)
        def routed(hp: Any, *args: Any, **kwargs: Any) -> keras.Model:
            return self.build(hp) if _is_of_trial(hp) else build(hp, *args, **kwargs)

        return routed

    def _routed_method(self, build: Any) -> Any:
        @functools.wraps(build)
        def routed(own: Any, hp: Any) -> keras.Model:
            return self.build(hp) if _is_of_trial(hp) else build(own, hp)

        return routed


def _is_of_trial(hp: Any) -> bool:
    """Whether hyperparameters are those of a trial of kbatch's, and not on the way to `build`."""
    values = getattr(hp, "values", {})
    return not isinstance(hp, GuardedHyperParameters) and any(each in values for each in AXIS)
