"""Run: a compiled model, a recipe, data and a goal in; an outcome out. The one path that every trial takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from kbatch.building import accumulation
from kbatch.building.augmentation_scope import augmented
from kbatch.building.optimizers import learning_rate_of
from kbatch.building.pass_weights import weighed
from kbatch.building.policy_scope import policy_scope
from kbatch.building.seed_scope import seed_scope
from kbatch.callbacks.counting_clock import CountingClock
from kbatch.callbacks.epoch_end import EpochEnd
from kbatch.callbacks.finiteness import scaled_updates
from kbatch.callbacks.horizon import Horizon
from kbatch.callbacks.training_clock import TrainingClock
from kbatch.callbacks.user_callback import UserCallback
from kbatch.callbacks.warmup import Warmup
from kbatch.data import augmentation
from kbatch.data.batches import Data
from kbatch.device import meter
from kbatch.device.utilisation import Sampler
from kbatch.errors import DataError
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.recompute._apply import applied
from kbatch.runtime.oom import is_out_of_memory, is_suspect
from kbatch.training import remarks
from kbatch.training.goal import Goal

ENDLESS = 1_000_000  # epochs: the horizon ends a training, not their number
INPUT_BATCHES, INPUT_SECONDS = 8, 1.0  # at least so many batches are timed, at most so long


@dataclass(frozen=True)
class RunOptions:
    """What surrounds a training besides model, recipe, data and goal.

    Attributes:
        seed: Integer, seed of the order of the data and of dropout.
        own_policy: The user's dtype policy, set again afterwards.
        callbacks: The user's callbacks.
        checkpoint_callbacks: Callbacks that come last at the end of an epoch, when the kept weights
            are back.
        class_weight: Mapping from class to weight, or `None`.
        verbose: Keras' `verbose`.
        on_progress: Function told of the training seconds and the last value measured, every tenth
            of a second. Optional.
        largest_passed: Integer, the largest micro-batch that has trained in this project; 0 if none
            has. An ambiguous error (such as "No algorithm worked") is taken for out of memory only
            for a larger micro-batch than this.
        updates: Integer, weight updates to train for instead of the goal's seconds. `None` for the
            seconds.
    """

    seed: int = 0
    own_policy: str = "float32"
    callbacks: Sequence[keras.callbacks.Callback] = ()
    checkpoint_callbacks: Sequence[keras.callbacks.Callback] = ()
    class_weight: Mapping[int, float] | None = None
    verbose: Any = 0
    on_progress: Callable[[float, float | None], None] | None = None
    largest_passed: int = 0
    updates: int | None = None


def check_sizes(batch_sizes: Sequence[int], data: Data) -> None:
    """Refuse batch sizes above the number of examples.

    Raises:
        DataError: If a batch would be larger than the data.
    """
    too_large = [size for size in batch_sizes if size > data.training.examples]
    if too_large:
        raise DataError(
            f"`batch_size` must be at most the number of training examples, {data.training.examples}",
            ", ".join(map(str, too_large)),
            "Take these sizes out of the space, or train on more examples",
        )


def run(model: keras.Model, recipe: Recipe, data: Data, goal: Goal, options: RunOptions) -> Outcome:
    """Train a compiled model for the goal's seconds and measure it.

    Args:
        model: Model compiled for the recipe; afterwards it holds the weights that were kept.
        recipe: `Recipe` to follow.
        data: Examples to train on and batches to measure on.
        goal: Seconds and metric.
        options: Seed, callbacks and the rest.

    Returns:
        The `Outcome`. Out of memory and NaN are outcomes; any other error is raised.
    """
    entered = time.perf_counter()
    meter.reset_peak()
    stream = data.training.stream(recipe.examples_per_pass, options.seed)
    try:
        input_seconds = _input_seconds(
            data.training.unshuffled(recipe.examples_per_pass),
            data.training.examples // recipe.examples_per_pass + 1,
        )
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Outcome(ended="out_of_memory", message=str(error)[:2000])
    instruments = _Instruments(recipe, data, goal, options, input_seconds)
    instruments.seconds["input_probe"] = time.perf_counter() - entered
    ended, message, final_rate, updates_before = None, "", None, scaled_updates(model)
    try:
        with instruments.sampler, _prepared(model, recipe, options):
            model.fit(
                stream,
                callbacks=instruments.callbacks,
                **_fit_arguments(recipe, data.training.examples, options),
            )
        # EarlyStopping and an optimizer's moving average may have put others there
        instruments.horizon.restore()
        final_rate = float(model.optimizer.learning_rate)
    except Exception as error:
        if not _means_out_of_memory(error, recipe.examples_per_pass, options.largest_passed):
            raise
        ended, message = "out_of_memory", str(error)[:2000]
    outcome = replace(
        instruments.outcome(ended, entered),
        **_of_the_plan(model, instruments.clock.seconds),
        learning_rate=recipe.learning_rate or learning_rate_of(model.optimizer),
        final_learning_rate=final_rate,
        skipped_updates=_skipped(model, instruments.clock.updates, updates_before),
        input_examples_per_second=None
        if not input_seconds
        else recipe.examples_per_pass / input_seconds,
        message=message,
    )
    said = remarks.of(outcome, goal, recipe, input_seconds, data.training.remedy)
    return replace(outcome, remarks=(*said, *accumulation.remarks(model, recipe), *data.remarks))


class _Instruments:
    """The callbacks of one training, in their order, and what they measured.

    Attributes:
        seconds: Wall-clock seconds of parts that no callback sees.
    """

    def __init__(
        self, recipe: Recipe, data: Data, goal: Goal, options: RunOptions, input_seconds: float
    ) -> None:
        self._recipe = recipe
        self.clock = TrainingClock(
            recipe.accumulation_steps, input_seconds=input_seconds * recipe.accumulation_steps
        )
        self._counting = None if options.updates is None else CountingClock(self.clock)
        length, timer = options.updates or goal.seconds, self._counting or self.clock
        self.horizon = Horizon(
            length,
            data.validation,
            timer,
            goal.metric,
            goal.direction,
            goal.target,
            on_progress=options.on_progress,
        )
        self._epoch_end = EpochEnd(self.clock, self.horizon, time.perf_counter)
        self._users = [UserCallback(callback, self.horizon) for callback in options.callbacks]
        self._beginning = _Beginning()
        self.sampler = Sampler()
        self.seconds: dict[str, float] = {}
        own = _around_users(self._users, self.clock, self.horizon, self._epoch_end, recipe)
        self.callbacks = [
            *own,
            *options.checkpoint_callbacks,
            self._epoch_end.after,
            self._beginning,
        ]

    def outcome(self, ended: str | None, entered: float) -> Outcome:
        """What was measured, right after the training.

        Args:
            ended: How it ended, if by an error; else `None`.
            entered: When `run` was entered, on `time.perf_counter`.
        """
        clock, horizon, used, left = (
            self.clock,
            self.horizon,
            self.sampler.result(),
            time.perf_counter(),
        )
        setup = (self._beginning.at or left) - entered - self.seconds["input_probe"]
        around = {
            **self.seconds,
            "setup": setup,
            "finish": left - (self._epoch_end.ended_at or left),
        }
        return Outcome(
            ended=ended or horizon.ended or "callback",
            curve=self._counting.in_seconds(horizon.curve)
            if self._counting
            else tuple(horizon.curve),
            value=horizon.value if not ended else None,
            metrics={
                name: value for name, value in horizon.metrics.items() if math.isfinite(value)
            },
            train_seconds=clock.seconds,
            median_update_seconds=clock.median_update_seconds,
            updates=clock.updates,
            examples=clock.updates * self._recipe.batch_size,
            seconds={**around, **_parts(clock, horizon, self._epoch_end, self._users)},
            peak_bytes=meter.bytes_peak(),
            utilisation=vars(used) if used else {},
            stopped_by=horizon.stopped_by,
        )


def _means_out_of_memory(error: Exception, micro_batch: int, largest_passed: int) -> bool:
    """Whether an error is running out of memory, or one that broken installations raise too and a smaller micro-batch did not."""
    if is_out_of_memory(error):
        return True
    return is_suspect(error) and 0 < largest_passed < micro_batch


def _of_the_plan(model: keras.Model, train_seconds: float) -> dict[str, Any]:
    """The plan that a model is trained by, and the seconds that it is predicted to have cost."""
    plan = applied(model)
    if plan is None:
        return {}
    return {
        "plan": plan.to_json(),
        "recompute_seconds": train_seconds
        * plan.extra_seconds_ratio
        / (1 + plan.extra_seconds_ratio),
    }


def _skipped(model: keras.Model, updates: int, scaled_before: int | None) -> int:
    """Updates that loss scaling skipped, of those that the clock counted."""
    scaled = scaled_updates(model)
    return (
        0 if scaled is None or scaled_before is None else max(updates - (scaled - scaled_before), 0)
    )


def _around_users(
    users: Sequence[keras.callbacks.Callback],
    clock: TrainingClock,
    horizon: Horizon,
    epoch_end: EpochEnd,
    recipe: Recipe,
) -> list[keras.callbacks.Callback]:
    """The callbacks of kbatch's own with the user's in between."""
    if not recipe.warmup_updates:
        return [clock, epoch_end.before, horizon, *users, epoch_end.between]
    warmup = Warmup(clock, recipe.warmup_updates)
    return [
        clock,
        epoch_end.before,
        warmup.before,
        horizon,
        *users,
        warmup.after,
        epoch_end.between,
    ]


def median_update_seconds(
    model: keras.Model, recipe: Recipe, data: Data, updates: range, options: RunOptions
) -> float:
    """The median of some updates of a training, input included; the model is spent afterwards.

    Args:
        model: Model compiled for the recipe.
        recipe: `Recipe` to follow.
        data: Examples to train on.
        updates: Range of the updates to take, counted from 1.
        options: Seed and the rest; its callbacks are not called.
    """
    clock = TrainingClock(recipe.accumulation_steps)

    def stop(batch: int, logs: Any = None) -> None:
        if clock.updates >= updates[-1]:
            model.stop_training = True

    stream = data.training.stream(recipe.examples_per_pass, options.seed)
    callbacks = [clock, keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
    with _prepared(model, recipe, options):
        model.fit(
            stream, callbacks=callbacks, **_fit_arguments(recipe, data.training.examples, options)
        )
    return statistics.median(clock.update_seconds[updates[0] - 1 : updates[-1]])


class _Beginning(keras.callbacks.Callback):
    """Notes when the first batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.at = self.at or time.perf_counter()


@contextmanager
def _prepared(model: keras.Model, recipe: Recipe, options: RunOptions) -> Iterator[None]:
    """Policy, seed, augmentation and weighing of passes, as the recipe says, for one `fit`."""
    with policy_scope(recipe.policy, options.own_policy), seed_scope(options.seed):
        with augmented(model, augmentation.layers(recipe.augmentation)), weighed(model, recipe):
            yield


def _fit_arguments(recipe: Recipe, examples: int, options: RunOptions) -> dict[str, Any]:
    """Those of one endless `fit`; an epoch is one pass over the data, rounded up to whole updates."""
    return {
        "epochs": ENDLESS,
        "steps_per_epoch": math.ceil(examples / recipe.batch_size) * recipe.accumulation_steps,
        "class_weight": options.class_weight,
        "verbose": options.verbose,
        "shuffle": False,  # the stream shuffles itself, and Keras warns otherwise
    }


def _parts(
    clock: TrainingClock, horizon: Horizon, epoch_end: EpochEnd, users: Sequence[UserCallback]
) -> dict[str, float]:
    """Wall-clock seconds between the first batch and the last callback, each measured by the callback it belongs to."""
    first_step = max(clock.first_step_seconds, 0.0) if clock.updates else 0.0
    return {
        "first_step": first_step,
        "training": sum(clock.update_seconds) - first_step,
        "validation": horizon.validation_seconds,
        "callbacks": epoch_end.callback_seconds + sum(user.batch_seconds for user in users),
        "checkpoint": epoch_end.checkpoint_seconds,
    }


def _input_seconds(stream: tf.data.Dataset, batches: int) -> float:
    """Seconds per batch of the input pipeline alone, once its first batch is there, over about one pass or one second."""
    remaining = iter(stream)
    next(remaining)
    began, taken = time.perf_counter(), 0
    while taken < INPUT_BATCHES or (
        taken < batches and time.perf_counter() - began < INPUT_SECONDS
    ):
        next(remaining)
        taken += 1
    return (time.perf_counter() - began) / taken
