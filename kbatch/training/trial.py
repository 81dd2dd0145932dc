"""Trial: one model's life: made, trained once, forgotten, with its wall-clock seconds by part."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from kbatch.building.model_maker import ModelMaker
from kbatch.device import meter
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.runtime import gradient_registry
from kbatch.runtime.oom import is_out_of_memory


class Trial:
    """One model from `build` to the end of its training; made at `build`'s entry, where its clock begins.

    Attributes:
        model: The compiled model; an empty one if it did not fit into memory; `None` until it is
            made.
        failure: `Outcome` of a model that did not fit into memory when it was built, else `None`.
    """

    def __init__(self) -> None:
        # Before the clock runs: collecting the graphs of many models at once, in the middle of a
        # later one's first step,
        # was seen to take minutes.
        gc.collect()
        self._registered = gradient_registry.registered()
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._left_out = 0.0
        self._bytes_before = meter.bytes_now()
        self.model: keras.Model | None = None
        self.failure: Outcome | None = None

    def make(self, model_maker: ModelMaker, recipe: Recipe, hp: Any = None) -> keras.Model:
        """The compiled model, or an empty one if memory ran out, which is an outcome and no error."""
        with self.part("build"):
            try:
                self.model = model_maker.make(recipe, hp)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return self.refuse(str(error)[:2000])
        return self.model

    def refuse(self, message: str) -> keras.Model:
        """An empty model for a recipe that does not fit into memory, which is an outcome and no error."""
        self.failure = Outcome(ended="out_of_memory", message=message)
        self.model = keras.Sequential()
        return self.model

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside the `with` as a part of that name."""
        began = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """Leave the seconds inside the `with`, such as those of the baseline's own training, out of the whole."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began

    @contextmanager
    def leave_out_bytes(self) -> Iterator[None]:
        """Do not count device bytes that are taken inside the `with`, such as the data's on a CPU."""
        before = meter.bytes_now()
        yield
        if before is not None and self._bytes_before is not None:
            self._bytes_before += (meter.bytes_now() or before) - before

    def measured(self, outcome: Outcome) -> Outcome:
        """The outcome with the seconds of all parts and the whole, its peak counted above the bytes in use before."""
        total = time.perf_counter() - self._began - self._left_out
        peak = (
            None if outcome.peak_bytes is None else outcome.peak_bytes - (self._bytes_before or 0)
        )
        return replace(
            outcome, seconds={**self._seconds, **outcome.seconds, "total": total}, peak_bytes=peak
        )

    def forget(self) -> None:
        """Give back what TensorFlow holds of the model beyond its life."""
        self.model = None
        gradient_registry.purge(self._registered)
