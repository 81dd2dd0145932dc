"""Own fit: a `keras_tuner.HyperModel` that trains by itself, as KerasTuner's guide says.

Its `fit` is run up to the call of `model.fit`, with a stand-in for that. What it does to data and
callbacks stays so. The hyperparameter that it passes as batch size is kbatch's axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import keras_tuner

from kbatch.errors import SearchError
from kbatch.models.maker import fresh_hyperparameters
from kbatch.runtime import users_code
from kbatch.standin.fit_call import FitCall, standing_in
from kbatch.standin.taken import batch_size_of, readable_arguments

MOST_SIZES = 12  # of a range of whole numbers; chosen by hand


class _Reached(BaseException):
    """Ends a `fit` behind its call of `model.fit`; no `except Exception` catches it."""


@dataclass(frozen=True)
class OwnFit:
    """The `fit` of a hypermodel, and how its models are built.

    Attributes:
        fit: Function `fit(hp, model, *args, **kwargs)`.
        build: Function `build(hp)`.
        declare: Function `declare_hyperparameters(hp)`.
    """

    fit: Callable[..., Any]
    build: Callable[[Any], keras.Model]
    declare: Callable[[Any], None]

    @classmethod
    def of(cls, build: Any) -> OwnFit | None:
        """Return the own `fit` of a hypermodel; `None` if it has none."""
        if not isinstance(build, keras_tuner.HyperModel):
            return None
        if type(build).fit is keras_tuner.HyperModel.fit:
            return None
        return cls(build.fit, build.build, build.declare_hyperparameters)

    def call(self, hp: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FitCall:
        """Return the call of `model.fit` that it makes.

        Raises:
            SearchError: If it makes none.
        """
        model = self.build(hp)
        found: list[FitCall] = []

        def take(call: FitCall) -> Any:
            found.append(call)
            raise _Reached

        try:
            with standing_in(take):
                self.fit(hp, model, *args, **kwargs)
        except _Reached:
            return found[0]
        raise SearchError(
            "The fit() of a HyperModel must call model.fit",
            f"{self.fit.__qualname__}, which calls none",
            "Pass its build alone, kbatch.HyperModel(own.build)",
        )

    def batch(
        self, values: Mapping[str, Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Batch:
        """Return which hyperparameter is the batch size, and what today's is."""
        hp = fresh_hyperparameters(values)
        size = batch_size_of(self.call(hp, args, kwargs))
        of_build = fresh_hyperparameters(values)
        self.build(of_build)
        known = {each.name for each in of_build.space}
        own = [each for each in hp.space if each.name not in known]
        varying = [each for each in own if len(_values(each)) > 1]
        for axis in varying:
            other = next(each for each in _values(axis) if each != hp.values[axis.name])
            varied = fresh_hyperparameters({**hp.values, axis.name: other})
            if batch_size_of(self.call(varied, args, kwargs)) != size:
                names = tuple(each.name for each in varying if each is not axis)
                return Batch(size, axis.name, tuple(sorted(_values(axis))), names)
        return Batch(size, None, (), tuple(each.name for each in varying))

    def arguments(
        self, values: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a search: what `model.fit` is given with today's values."""
        call = self.call(fresh_hyperparameters(values), args, kwargs)
        found, notes = readable_arguments(call)
        for note in notes:
            users_code.warn(f"{note}.")
        epochs = {"epochs": kwargs["epochs"]} if "epochs" in kwargs else {}
        return {**found, **epochs}


@dataclass(frozen=True)
class Batch:
    """How a `fit` batches.

    Attributes:
        today: Integer, examples of an update today.
        name: String, the hyperparameter that says so; `None` if none does.
        sizes: Tuple of its values.
        others: Tuple of names, other hyperparameters of `fit`, which stay as they are today.
    """

    today: int
    name: str | None
    sizes: tuple[int, ...]
    others: tuple[str, ...]


def _values(axis: Any) -> list[Any]:
    """The values of a hyperparameter; of a wide range of whole numbers, some."""
    values = list(getattr(axis, "values", (False, True)))
    return values[:: max(len(values) // MOST_SIZES, 1)]
