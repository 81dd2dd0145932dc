"""A trial: the life of one model, from `build` to the end of its training."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from kbatch.models.maker import ModelMaker
from kbatch.models.start import Start
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory


class Trial:
    """The life of one model, with its wall-clock seconds by part; its clock begins at once.

    Attributes:
        model: The compiled model; an empty one if it did not fit into memory; `None` until it is
            made.
        failure: `Outcome` of a model that did not fit into memory when it was built, else `None`.
        declared: Dict, the hyperparameters that `build` declared in another process; empty if it
            was called in this one.
    """

    def __init__(self) -> None:
        # Before the clock runs: Python was seen to take minutes to collect the graphs of many
        # models in the middle of a later one's first step.
        gc.collect()
        self._registered = tensorflow_private.registered_gradients()
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._left_out = 0.0
        self._bytes_before = device_memory.bytes_now()
        self.model: keras.Model | None = None
        self.failure: Outcome | None = None
        self.declared: dict[str, Any] = {}
        self._start = Start()  # of the model maker, once it makes the model

    def make(self, model_maker: ModelMaker, recipe: Recipe, hp: Any = None) -> keras.Model:
        """Make and return the compiled model, or an empty one if memory ran out."""
        self._start = model_maker.start
        with self.part("build"):
            try:
                self.model = model_maker.make(recipe, hp)
            except Exception as error:  # TensorFlow has no one class for running out of memory
                if not is_out_of_memory(error):
                    raise
                return self.refuse(str(error)[:2000])
        return self.model

    def refuse(self, message: str) -> keras.Model:
        """Note that the recipe does not fit into memory, and return an empty model."""
        self.failure = Outcome(ended="out_of_memory", message=message)
        return self.leave_to_worker()

    def leave_to_worker(self) -> keras.Model:
        """Return an empty model, in place of one that is not made in this process."""
        self.model = keras.Sequential()
        return self.model

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds inside the `with` as a part of that name."""
        began = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """Leave the seconds inside the `with`, such as the baseline's, out of the total."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began

    @contextmanager
    def leave_out_bytes(self) -> Iterator[None]:
        """Do not count device bytes that are allocated inside the `with`, such as data on a CPU."""
        before = device_memory.bytes_now()
        yield
        if before is not None and self._bytes_before is not None:
            self._bytes_before += (device_memory.bytes_now() or before) - before

    def measured(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the seconds of all parts, and its peak above the bytes before."""
        total = time.perf_counter() - self._began - self._left_out
        seconds = {**self._seconds, **outcome.seconds, "total": total}
        return replace(
            outcome,
            seconds=seconds,
            peak_bytes=self._above(outcome.peak_bytes),
            first_update_peak_bytes=self._above(outcome.first_update_peak_bytes),
        )

    def _above(self, peak_bytes: int | None) -> int | None:
        """Peak bytes above what was in use before the trial."""
        return None if peak_bytes is None else peak_bytes - (self._bytes_before or 0)

    def forget(self) -> None:
        """Free the model, and what TensorFlow would hold of it for ever."""
        self.model = None
        self._start.put_back()
        tensorflow_private.purge_gradients(self._registered)
