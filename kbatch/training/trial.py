"""Trial: a fresh model, its training in this process, its weights, and its repeat."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import keras
import keras_tuner
import tensorflow as tf

from kbatch.callbacks.evaluation import evaluated
from kbatch.callbacks.horizon import single_numbers
from kbatch.callbacks.user_callbacks import is_of_keras
from kbatch.data.validation import Data
from kbatch.models.maker import ModelMaker
from kbatch.models.start import Start
from kbatch.models.traces import Traces
from kbatch.outcome import OUT_OF_MEMORY, Curve, Goal, Outcome
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import Job
from kbatch.runtime import device, device_memory, keras_tuner_private, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory
from kbatch.runtime.worker import Death
from kbatch.search.oracle import REPEAT
from kbatch.search.rungs import BRACKET, Question, Share
from kbatch.search.tuner_border import RATE_OF_BUILD
from kbatch.training import out_of_memory
from kbatch.training.pace import RunOptions
from kbatch.training.progress import Watcher
from kbatch.training.run import median_update_seconds, run


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
                return self.refuse(str(error))
        return self.model

    def refuse(self, message: str) -> keras.Model:
        """Note that the recipe does not fit into memory, and return an empty model."""
        self.failure = out_of_memory.outcome_of(message)
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


@dataclass(frozen=True)
class Checkpoint:
    """The file of a trial's kept weights, and the callbacks that write it."""

    path: Path
    # callbacks that come last at the end of an epoch, when the kept weights are back
    callbacks: Sequence[Any]
    bytes: int  # the largest size that the file may have

    def fresh(self) -> Checkpoint:
        """Return the same for one training: KerasTuner's callback remembers its best epoch."""
        kind = keras_tuner_private.save_best_epoch()
        own = [copy.copy(each) if isinstance(each, kind) else each for each in self.callbacks]
        return dataclasses.replace(self, callbacks=own)


def largest_bytes(model: keras.Model) -> int:
    """Return the largest size of a model's checkpoint, in bytes.

    An optimizer has at most two slots for each weight; a megabyte is for the rest of the file.
    """
    weights = sum(math.prod(variable.shape) * 4 for variable in model.variables)
    return 3 * weights + (1 << 20)


@dataclass(frozen=True)
class Order:
    """A training to make, with all that it needs besides model, data and goal of the search."""

    job: Job
    options: RunOptions  # of it; a trainer adds what only it knows
    checkpoint: Path | None = None  # path of the file for the kept weights
    # batches that the kept weights are evaluated on too
    test: tf.data.Dataset | None = None
    # function of what the trial had gained at the rung, which tells whether it goes on; or the
    # share of the horizon that it is given
    ask: Callable[[float], bool] | Share | None = None

    def asked(self, goal: Goal) -> Callable[[Curve], bool] | None:
        """Return what asks after each measurement whether the training goes on."""
        if self.ask is None:
            return None
        if isinstance(self.ask, Share):
            return self.ask.question(goal.seconds)
        return Question(goal.seconds, goal.gain, self.ask)


@dataclass(frozen=True)
class Trained:
    """A training that ended."""

    outcome: Outcome
    test: dict[str, float]  # the metrics of the kept weights on test data; empty without any
    device: str  # the training device in words
    # `keras_tuner.HyperParameters.get_config()` of what `build` declared in another process; empty
    # in this one
    hyperparameters: dict[str, Any] = field(default_factory=dict)


class Trainer(Protocol):
    """Makes the trainings of a search, one at a time."""

    isolated: ClassVar[bool]  # whether it makes them in another process, whose death it survives

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained | Death:
        """Make a training.

        Returns what was measured; or the `Death` of the process that trained.
        """

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe, input included."""

    def close(self) -> None:
        """Give back what the trainer holds; a later training takes it again."""


# an outcome, and the metrics of the kept weights on test data
Measured = tuple[Outcome, dict[str, float]]


@dataclass(frozen=True)
class LocalTrainer:
    """Makes the trainings of a search in this process."""

    isolated: ClassVar[bool] = False
    model_maker: ModelMaker
    data: Data  # training and validation data
    goal: Goal | None  # of every trial; `None` before its seconds are known
    # of trainings before, which later ones of the same graph use; `None` if each has its own
    traces: Traces | None = None

    def __post_init__(self) -> None:
        device.check_gpus_not_left()

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained:
        """Make a training; see `Trainer.train`."""
        job, goal = order.job, cast(Goal, self.goal)  # known once trainings begin
        trial = trial or new_trial(job, self.model_maker)
        options = replace(
            order.options,
            checkpoint_callbacks=() if checkpoint is None else checkpoint.callbacks,
            on_progress=watcher.progress,
        )
        watcher.started(job.purpose, job.trial, job.recipe, goal.seconds)
        made: Measured | None = None
        if trial.failure is not None:
            made = trial.measured(trial.failure), {}
        elif self.traces is not None and all(map(is_of_keras, order.options.callbacks)):
            made = self._run_in_kept(self.traces, trial, order, options)
        if made is None:
            made = self._run(trial, trial.model, order, options)
        # The model of a trial may be built already while the baseline trains what they share.
        self.model_maker.start.put_back()
        outcome, test = made
        return Trained(outcome, test, device_memory.device_words())

    def _run(self, trial: Trial, model: keras.Model, order: Order, options: RunOptions) -> Measured:
        """Train a model, and measure it on test data if there are any."""
        goal = cast(Goal, self.goal)
        options = replace(options, goes_on=order.asked(goal))
        outcome = trial.measured(run(model, order.job.recipe, self.data, goal, options))
        test = {}
        if order.test is not None and outcome.value is not None:
            test = single_numbers(evaluated(model, order.test))
        return outcome, test

    def _run_in_kept(
        self, traces: Traces, trial: Trial, order: Order, options: RunOptions
    ) -> Measured | None:
        """Train in a model whose trace may be made already; `None` if memory ran out with it."""
        job, model = order.job, cast(keras.Model, trial.model)

        def make() -> keras.Model:
            values = self.model_maker.hyperparameters(job.values)
            return self.model_maker.with_seed(job.seed).make(job.recipe, values)

        try:
            with ExitStack() as lending:
                with trial.part("build"):
                    lent = lending.enter_context(traces.lent(model, job.recipe, make))
                made = self._run(trial, lent, order, options)
                if lent is model or made[0].ended != OUT_OF_MEMORY:
                    return made
                raise MemoryError(made[0].message)
        except Exception as error:  # TensorFlow has no one class for running out of memory
            if not is_out_of_memory(error):
                raise
        traces.forget()  # its bytes may be those that lack
        return None

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`."""
        trial = new_trial(job, self.model_maker)
        options = RunOptions(seed=job.seed, own_policy=self.model_maker.own_policy)
        median = median_update_seconds(trial.model, job.recipe, self.data, updates, options)
        trial.forget()
        return median

    def close(self) -> None:
        """Give back the kept models."""
        if self.traces is not None:
            self.traces.forget()


def new_trial(job: Job, model_maker: ModelMaker) -> Trial:
    """Return a trial outside KerasTuner, with its model."""
    trial = Trial()
    trial.make(
        model_maker.with_seed(job.seed),
        job.recipe,
        model_maker.hyperparameters(job.values),
    )
    return trial


REPEAT_SEED = (
    100_000  # above that of the search: far from those of a confirmation, which are to be fresh
)


def maker_of_repeat(model_maker: ModelMaker, hp: keras_tuner.HyperParameters) -> ModelMaker:
    """Return the maker of a trial's model: the search's, with another seed for a repeat."""
    seed = model_maker.seed + REPEAT_SEED * (REPEAT in hp.values)
    return dataclasses.replace(model_maker, seed=seed)


def execution_of(job: Job, number: int) -> Job:
    """Return one of the `executions_per_trial` of a training: the first, or one of another seed."""
    if number == 0:
        return job
    seed = job.seed + REPEAT_SEED * (1 + number)
    return dataclasses.replace(job, seed=seed, repeats=job.trial)


def job_of_repeat(
    hp: keras_tuner.HyperParameters,
    model_maker: ModelMaker,
    number: int,
    recipe: Recipe,
    rate: float | None,
    remarks: tuple[str, ...],
) -> Job:
    """Return the training of a trial."""
    left_out = (REPEAT, RATE_OF_BUILD, *BRACKET)
    values = {name: value for name, value in hp.values.items() if name not in left_out}
    seed = maker_of_repeat(model_maker, hp).seed
    first = hp.values.get(REPEAT)
    repeats = None if first is None else int(first)
    return Job("search", number, seed, recipe, values, rate, remarks, repeats)
