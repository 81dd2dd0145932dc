"""Run: one model trained for its horizon and measured, and the remarks on it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.clock import CountingClock, Heartbeat, TrainingClock
from kbatch.callbacks.evaluation import Passes
from kbatch.callbacks.horizon import EpochEnd, Horizon, scaled_updates
from kbatch.callbacks.rate import MovingAverage
from kbatch.callbacks.user_callbacks import UserCallback, is_of_keras
from kbatch.data import augmentation
from kbatch.data.order import Cuts
from kbatch.data.streams import Source
from kbatch.data.streams import weighed as weighed_by_class
from kbatch.data.validation import Data
from kbatch.errors import SearchError
from kbatch.models.accumulation import accumulation_remarks, weighed_passes
from kbatch.models.exact_accumulation import called_in_passes
from kbatch.models.gradient_noise import NoiseMeter, measured
from kbatch.models.optimizers import learning_rate_of
from kbatch.models.policies import explained, float8_remarks, policy_scope
from kbatch.models.replicas import as_one_device
from kbatch.models.scopes import augmented, scaled_dropout
from kbatch.models.start import seed_scope
from kbatch.models.traces import make_step_ready, steps_by_shapes
from kbatch.models.train_step import trained_by_method
from kbatch.outcome import OUT_OF_MEMORY, Goal, Outcome
from kbatch.recipe import Recipe
from kbatch.recipe_words import CONSTANT
from kbatch.recompute._apply import applied
from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.nvidia import Sampler
from kbatch.runtime.oom import is_full_of_programs, is_out_of_memory
from kbatch.training import out_of_memory
from kbatch.training.pace import Pace, RunOptions, most_updates


class Instruments:
    """The callbacks of one training, in their order, and their measurements.

    Attributes:
        clock: `TrainingClock`.
        pace: `Pace`.
        horizon: `Horizon`.
        sampler: Samples the use of the GPU inside its `with`.
        callbacks: All callbacks, in their order.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        goal: Goal,
        options: RunOptions,
        input_seconds: float,
        entered: float,
    ) -> None:
        self._entered = entered
        self._input_probe_seconds = time.perf_counter() - entered
        of_pass, steps = data.training.examples, recipe.steps_per_update
        # a growing batch is charged for input as in its first size: few of its batches are prepared
        smallest = math.ceil(of_pass / recipe.batch_size) / most_updates(recipe, of_pass)
        self.clock = TrainingClock(steps, input_seconds=input_seconds * steps * smallest)
        self.pace = Pace(recipe, of_pass, goal, options, self.clock, lambda: self.horizon.curve)
        self._counting = (
            None if options.examples is None else CountingClock(self.clock, self.pace.examples)
        )
        self._average: MovingAverage | None = None
        if recipe.ema is not None:
            self._average = MovingAverage(self.clock, recipe.ema)
        self.horizon = Horizon(
            options.examples or goal.seconds,
            Passes(data.validation) if data.kept else data.validation,
            self._counting or self.pace.horizon_clock(),
            goal.metric,
            goal.direction,
            goal.target,
            on_progress=options.on_progress,
            measured=nullcontext if self._average is None else self._average.measured,
            goes_on=options.goes_on,
        )
        self._epoch_end = EpochEnd(self.clock, self.horizon, time.perf_counter)
        self._users = [UserCallback(callback, self.horizon) for callback in options.callbacks]
        self._first_batch = _FirstBatch()
        self._first_times = _FirstTimes(self.clock, self.horizon)
        self.sampler = Sampler()
        self.callbacks = [
            *self._around_users(),
            *options.checkpoint_callbacks,
            self._epoch_end.after,
            self._first_batch,
            self._first_times,
        ]

    def outcome(self, ended: str | None) -> Outcome:
        """Return the measurements, right after the training."""
        clock, horizon, used = self.clock, self.horizon, self.sampler.result()
        load = {} if used is None else vars(used)
        first_peak, peak = self._first_times.peak_bytes, device_memory.bytes_peak()
        if first_peak is not None and clock.updates <= self._first_times.updates:
            peak = max(first_peak, peak or 0)  # there is no later update
        curve = tuple(horizon.curve)
        if self._counting:
            curve = self._counting.in_seconds(horizon.curve)
        finite = {name: value for name, value in horizon.metrics.items() if math.isfinite(value)}
        return Outcome(
            ended=ended or horizon.ended or "callback",
            curve=curve,
            curve_updates=tuple(horizon.curve_updates),
            value=None if ended else horizon.value,
            metrics=finite,
            train_seconds=clock.seconds,
            median_update_seconds=clock.median_update_seconds,
            updates=clock.updates,
            examples=self.pace.examples(),
            seconds=self._seconds(),
            peak_bytes=peak,
            utilisation={name: value for name, value in load.items() if value is not None},
            stopped_by=horizon.stopped_by,
            first_update_peak_bytes=first_peak,
        )

    def _around_users(self) -> list[keras.callbacks.Callback]:
        """The callbacks of kbatch with the user's in between."""
        average = [] if self._average is None else [self._average]
        return [
            self.clock,
            self._epoch_end.before,
            *average,
            *self.pace.around([self.horizon, *self._users]),
            self._epoch_end.between,
        ]

    def _seconds(self) -> dict[str, float]:
        """Wall-clock seconds of each part of the training."""
        left = time.perf_counter()
        began = self._first_batch.at or left
        ended = self._epoch_end.ended_at or left
        first_step = max(self.clock.first_step_seconds, 0.0) if self.clock.updates else 0.0
        users = sum(user.batch_seconds for user in self._users)
        return {
            "input_probe": self._input_probe_seconds,
            "setup": began - self._entered - self._input_probe_seconds,
            "finish": left - ended,
            "first_step": first_step,
            "training": sum(self.clock.update_seconds) - first_step,
            "stopped": self.clock.stopped_seconds,
            "validation": self.horizon.validation_seconds,
            "callbacks": self._epoch_end.callback_seconds + users,
            "checkpoint": self._epoch_end.checkpoint_seconds,
        }


class _FirstBatch(keras.callbacks.Callback):
    """Notes when the first batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.at = self.at or time.perf_counter()


class _FirstTimes(keras.callbacks.Callback):
    """Notes the peak bytes of the first update and the first validation on a GPU.

    After each of them a new peak begins.

    Attributes:
        peak_bytes: Integer, their peak; `None` before the first update.
        updates: Integer, updates up to the later of them.
    """

    def __init__(self, clock: TrainingClock, horizon: Horizon) -> None:
        super().__init__()
        self._clock, self._horizon = clock, horizon
        self._validated = False
        self.peak_bytes: int | None = None
        self.updates = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updated = self._clock.updates == 1 and self.peak_bytes is None
        validated = bool(self._horizon.curve) and not self._validated
        if not device_memory.tries_algorithms() or not (updated or validated):
            return
        self._validated = self._validated or validated
        self.peak_bytes = max(self.peak_bytes or 0, device_memory.bytes_peak() or 0)
        self.updates = self._clock.updates
        device_memory.reset_peak()


ENDLESS = 1_000_000  # epochs: the horizon ends a training, not their number


@contextmanager
def recipe_scope(
    model: keras.Model, recipe: Recipe, options: RunOptions
) -> Iterator[NoiseMeter | None]:
    """Set policy, seed, method, augmentation and weights of passes inside the `with` block."""
    with (
        explained(recipe.policy),
        policy_scope(recipe.policy, options.own_policy),
        seed_scope(options.seed),
        scaled_dropout(model, recipe.dropout_scale),
        called_in_passes(model, recipe),
        trained_by_method(model, recipe),
        augmented(model, augmentation.layers(recipe.augmentation)),
        weighed_passes(model, recipe) as pass_count,
        measured(model, recipe, pass_count, options.noise_interval) as noise_meter,
        as_one_device(model),
    ):
        yield noise_meter


def fit_arguments(
    recipe: Recipe, training: Source, options: RunOptions, cuts: Cuts | None = None
) -> dict[str, Any]:
    """Return the arguments of `fit` but for the callbacks.

    An epoch is one pass over the data, rounded up to whole updates. Of a growing batch it ends
    earlier, by `kbatch.callbacks.rate`.
    """
    updates_per_epoch = most_updates(recipe, training.examples)
    if cuts is None:
        batches = training.stream(recipe.examples_per_step, options.seed)
    else:
        batches = training.cut(cuts.endless(), options.seed)
    return {
        "x": weighed_by_class(batches, options.class_weight),
        "epochs": ENDLESS,
        "steps_per_epoch": updates_per_epoch * recipe.steps_per_update,
        "verbose": options.verbose,
        "shuffle": False,  # the stream shuffles itself, and Keras warns otherwise
    }


def median_update_seconds(
    model: keras.Model, recipe: Recipe, data: Data, updates: range, options: RunOptions
) -> float:
    """Return the median seconds of some updates, input included; the model is spent afterwards.

    A growing batch has its last size from the start here.
    """
    recipe = replace(recipe, batch_schedule=CONSTANT)
    clock = TrainingClock(recipe.steps_per_update)

    def stop(batch: int, logs: Any = None) -> None:
        if clock.updates >= updates[-1]:
            model.stop_training = True

    stopper = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with recipe_scope(model, recipe, options):
        model.fit(callbacks=[clock, stopper], **fit_arguments(recipe, data.training, options))
    return statistics.median(clock.update_seconds[updates[0] - 1 : updates[-1]])


# The input pipeline is timed over at least so many batches, and for at most so long.
INPUT_BATCHES, INPUT_SECONDS = 8, 1.0


def _is_known(model: keras.Model, options: RunOptions) -> bool:
    """Whether shapes tell what the first step creates, and no callback can change that before."""
    return all(map(is_of_keras, options.callbacks)) and steps_by_shapes(model)


class FullOfProgramsError(SearchError):
    """A GPU that has no room for one more program of XLA, which only a new process empties."""


def run(model: keras.Model, recipe: Recipe, data: Data, goal: Goal, options: RunOptions) -> Outcome:
    """Train a compiled model for the goal's seconds and measure it.

    Returns the `Outcome`. Out of memory and NaN are outcomes; any other error is raised.
    """
    entered = time.perf_counter()
    device_memory.reset_peak()
    try:
        input_seconds = _input_seconds(data.training, recipe.examples_per_step)
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise
        return out_of_memory.outcome_of(error)
    instruments = Instruments(recipe, data, goal, options, input_seconds, entered)
    ended, message, full_rate, noise_scale = None, "", None, None
    scaled_before, first_rate = scaled_updates(model), _first_rate(model, recipe)
    try:
        is_known, scope = _is_known(model, options), recipe_scope(model, recipe, options)
        with instruments.sampler, tensorflow_private.expected_retraces(), scope as noise_meter:
            instruments.pace.measure_noise_by(noise_meter, model)
            arguments = fit_arguments(recipe, data.training, options, instruments.pace.cuts)
            if is_known:
                make_step_ready(model, arguments["x"].element_spec)
            model.fit(callbacks=instruments.callbacks, **arguments)
        noise_scale = noise_meter.noise_scale() if noise_meter else None
        # EarlyStopping and an optimizer's moving average may have set other weights.
        instruments.horizon.restore()
        full_rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    except Exception as error:  # as above
        if _compiled_before and is_full_of_programs(error):
            raise FullOfProgramsError(
                "A GPU must have room for the programs that XLA compiles",
                str(error).splitlines()[0],
                "Begin again in a new process: what has finished is kept, and TensorFlow keeps "
                "programs only while a process lives",
            ) from error
        if not out_of_memory.is_meant(error, recipe.examples_per_pass, options.largest_passed):
            raise
        ended, message = OUT_OF_MEMORY, out_of_memory.outcome_of(error).message
    if recipe.jit_compile and ended is None:
        _compiled_before.add(True)
    outcome = replace(
        instruments.outcome(ended),
        **_plan_fields(model, instruments.clock.seconds),
        learning_rate=first_rate,
        final_learning_rate=None if full_rate is None else full_rate * instruments.pace.share,
        skipped_updates=_skipped_updates(model, recipe, instruments.clock.updates, scaled_before),
        input_examples_per_second=_per_second(recipe.examples_per_step, input_seconds),
        message=message,
        noise_scale=noise_scale,
    )
    remedy, share = data.training.remedy, instruments.pace.share
    own = remarks_of(outcome, goal, recipe, input_seconds, remedy, share)
    told = (*own, *accumulation_remarks(model, recipe), *float8_remarks(model, recipe))
    return replace(outcome, remarks=(*told, *_plan_remarks(model), *data.remarks))


# holds True once a training of this process has ended well and left XLA's programs in the GPU
_compiled_before: set[bool] = set()


def _first_rate(model: keras.Model, recipe: Recipe) -> float | None:
    """The learning rate before any callback; `None` if the optimizer has a schedule of its own."""
    return recipe.learning_rate or learning_rate_of(model.optimizer)


def _plan_fields(model: keras.Model, train_seconds: float) -> dict[str, Any]:
    """The plan of recomputation of a model, and the seconds that it is predicted to have cost."""
    plan = applied(model)
    if plan is None:
        return {}
    extra = plan.extra_seconds_ratio
    return {"plan": plan.to_json(), "recompute_seconds": train_seconds * extra / (1 + extra)}


def _plan_remarks(model: keras.Model) -> tuple[str, ...]:
    """A sentence for the user about a plan that sums gradients in another order."""
    plan = applied(model)
    if plan is None or not plan.reordered:
        return ()
    return (
        f"recompute={plan.strategy} equals plain training to rounding, not to the bit: "
        f"{plan.reordered}",
    )


def _skipped_updates(
    model: keras.Model, recipe: Recipe, updates: int, scaled_before: int | None
) -> int:
    """How many of the clock's updates loss scaling skipped, inner steps rounded up to updates."""
    scaled = scaled_updates(model)
    if scaled is None or scaled_before is None:
        return 0
    steps = recipe.method.inner_steps
    return max(math.ceil((updates * steps - (scaled - scaled_before)) / steps), 0)


def _per_second(examples: int, seconds: float) -> float | None:
    return examples / seconds if seconds else None


def _input_seconds(source: Source, batch_size: int) -> float:
    """Seconds per batch of the input pipeline without training, once for arrays."""
    known = {} if source.batch_seconds is None else source.batch_seconds
    if batch_size not in known:
        known[batch_size] = _measured_input_seconds(source, batch_size)
    return known[batch_size]


def _measured_input_seconds(source: Source, batch_size: int) -> float:
    """Seconds per batch of the input pipeline, after its first batch.

    They are measured over about one pass over the data or one second.
    """
    stream: tf.data.Dataset = source.unshuffled(batch_size)
    batches_per_pass = source.examples // batch_size + 1
    remaining = iter(stream)
    next(remaining)
    began, taken = time.perf_counter(), 0
    with Heartbeat() as heartbeat:
        while taken < INPUT_BATCHES or (
            taken < batches_per_pass and time.perf_counter() - began < INPUT_SECONDS
        ):
            next(remaining)
            taken += 1
        seconds = time.perf_counter() - began - heartbeat.stopped_seconds()
    return seconds / taken


# A remark is made if the input pipeline, without training, takes more than this share of an update.
# Chosen by hand, not tuned.
WAITS_FOR_INPUT = 0.5
# Validation is told of from this share of the training seconds, and so many seconds, on. Chosen by
# hand.
MOST_VALIDATION, LEAST_SECONDS = 0.5, 1.0
FIRST_STEP, VALIDATION = "the first step took", "validation took"
TOLD_ONCE = (FIRST_STEP, VALIDATION)  # in a search
FEWEST_MEASUREMENTS = 3  # for a value to be held


def remarks_of(
    outcome: Outcome,
    goal: Goal,
    recipe: Recipe,
    input_seconds: float | None,
    remedy: str,
    rate_share: float = 1.0,
) -> tuple[str, ...]:
    """Return the remarks on one training."""
    remarks = (
        _too_slow(outcome, goal),
        _slow_first_step(outcome, goal),
        _slow_validation(outcome),
        _waits_for_input(outcome, recipe, input_seconds or 0.0, remedy),
        _unfinished_warmup(outcome, recipe),
        _changed_rate(outcome, recipe, rate_share),
        _skipped(outcome),
        _was_stopped(outcome),
    )
    return tuple(remark for remark in remarks if remark)


def _too_slow(outcome: Outcome, goal: Goal) -> str:
    if len(outcome.curve) >= FEWEST_MEASUREMENTS or outcome.ended != "horizon":
        return ""
    # A training of a number of epochs has no horizon in seconds.
    seconds = goal.seconds if math.isfinite(goal.seconds) else outcome.train_seconds
    made = f"{outcome.updates} updates and {len(outcome.curve)} measurements"
    return f"too slow for this horizon: {made} in {seconds:.3g} s"


def _slow_first_step(outcome: Outcome, goal: Goal) -> str:
    seconds = outcome.seconds["first_step"]
    if seconds <= goal.seconds:
        return ""
    return (
        f"{FIRST_STEP} {seconds:.1f} s, more than the horizon of {goal.seconds:.3g} s: it is not "
        "on the clock, but every trial waits for it; more seconds a trial spend less time on it"
    )


def _slow_validation(outcome: Outcome) -> str:
    seconds, trained = outcome.seconds.get("validation", 0.0), outcome.train_seconds
    if seconds < max(MOST_VALIDATION * trained, LEAST_SECONDS):
        return ""
    return (
        f"{VALIDATION} {seconds:.1f} s beside {trained:.1f} s of training: it is not on the clock, "
        "but every trial waits for it; larger batches (validation_batch_size=512 of arrays) or "
        "fewer examples take less"
    )


def _waits_for_input(outcome: Outcome, recipe: Recipe, seconds_per_step: float, remedy: str) -> str:
    update = outcome.median_update_seconds
    input_seconds = seconds_per_step * recipe.steps_per_update
    if update and recipe.growth.factor > 1:
        # the input was timed at the last size, while most updates are of smaller ones
        input_seconds *= outcome.examples / (outcome.updates * recipe.batch_size)
        update = outcome.train_seconds / outcome.updates
    if not update or input_seconds <= WAITS_FOR_INPUT * update:
        return ""
    times = f"{1e3 * input_seconds:.1f} ms of the {1e3 * update:.1f} ms of an update"
    return f"waits for input: the pipeline alone takes {times}; {remedy}"


def _unfinished_warmup(outcome: Outcome, recipe: Recipe) -> str:
    if not outcome.updates or outcome.updates > recipe.warmup_updates:
        return ""
    made = f"{outcome.updates} of {recipe.warmup_updates} updates were made"
    return f"warm-up was not over: {made}, below the recipe's learning rate"


def _changed_rate(outcome: Outcome, recipe: Recipe, share: float) -> str:
    # the rate of a compiled optimizer stands in the outcome only
    first, final = recipe.learning_rate or outcome.learning_rate, outcome.final_learning_rate
    if not first or final is None or math.isclose(first * share, final, rel_tol=1e-5):
        return ""
    rates = f"ended at {final:.3g}, not at the recipe's {first * share:.3g}"
    return f"the learning rate {rates}: a callback set it"


def _skipped(outcome: Outcome) -> str:
    if not outcome.skipped_updates:
        return ""
    skipped = f"{outcome.skipped_updates} of {outcome.updates} updates"
    return f"loss scaling skipped {skipped}, whose gradients were not finite"


def _was_stopped(outcome: Outcome) -> str:
    seconds = outcome.seconds.get("stopped", 0.0)
    if not seconds:
        return ""
    return f"the process was stopped for {seconds:.1f} s, which the clock leaves out"
