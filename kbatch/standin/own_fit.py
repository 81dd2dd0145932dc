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
import tensorflow as tf

from kbatch.errors import SearchError
from kbatch.models.maker import fresh_hyperparameters
from kbatch.standin.fit_call import FitCall, standing_in
from kbatch.standin.taken import PASSED_ON, batch_size_of, listed, readable

MOST_SIZES = 12  # of a range of whole numbers; chosen by hand
EPOCHS = ("epochs", "initial_epoch")


class _Reached(BaseException):
    """Ends a `fit` behind its call of `model.fit`; no `except Exception` catches it."""


@dataclass(frozen=True)
class OwnFit:
    """The `fit` of a hypermodel, and how its models are built.

    Attributes:
        fit: Function `fit(hp, model, *args, **kwargs)`.
        build: Function `build(hp)`.
        declare: Function `declarefresh_hyperparameters(hp)`.
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
        others = []
        for axis in own:
            other = next((each for each in _values(axis) if each != hp.values[axis.name]), None)
            if other is None:
                continue
            varied = fresh_hyperparameters({**hp.values, axis.name: other})
            if batch_size_of(self.call(varied, args, kwargs)) != size:
                return Batch(size, axis.name, tuple(_values(axis)), _names(own, axis.name))
            others.append(axis.name)
        return Batch(size, None, (), tuple(others))

    def today(
        self, values: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Return the batch size that it trains with today."""
        return batch_size_of(self.call(fresh_hyperparameters(values), args, kwargs))

    def arguments(
        self, values: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a search: what `model.fit` is given with today's values."""
        call = self.call(fresh_hyperparameters(values), args, kwargs)
        given, notes = dict(call.arguments), list[str]()
        given["x"] = readable(given["x"], given["steps_per_epoch"], notes)
        given["callbacks"] = listed(given["callbacks"])
        passed = {name: given[name] for name in PASSED_ON if given[name] is not None}
        if isinstance(given["x"], tf.data.Dataset):
            passed["batched"] = True  # as `fit` takes it
        return {**passed, **{name: kwargs[name] for name in kwargs if name in EPOCHS}}


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


def _names(own: Sequence[Any], batch: str) -> tuple[str, ...]:
    return tuple(each.name for each in own if each.name != batch)
