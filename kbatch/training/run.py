"""One training: model, recipe, data and goal in, an outcome out. Every trial goes this way."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.horizon import scaled_updates
from kbatch.data.validation import Data
from kbatch.errors import DataError, SearchError
from kbatch.goal import Goal
from kbatch.models import accumulation, policies
from kbatch.models.optimizers import learning_rate_of
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.recompute._apply import applied
from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.oom import is_full_of_programs, is_out_of_memory, is_suspect
from kbatch.runtime.worker import Heartbeat
from kbatch.training import remarks
from kbatch.training.endless_fit import fit_arguments, recipe_scope
from kbatch.training.instruments import Instruments
from kbatch.training.run_options import RunOptions

# The input pipeline is timed over at least so many batches, and for at most so long.
INPUT_BATCHES, INPUT_SECONDS = 8, 1.0
MESSAGE_LENGTH = 2000  # characters of an error that a record keeps


class FullOfProgramsError(SearchError):
    """A GPU that has no room for one more program of XLA, which only a new process empties."""


def check_sizes(batch_sizes: Sequence[int], data: Data) -> None:
    """Refuse batch sizes above the number of examples.

    Raises:
        DataError: If a batch would be larger than the data.
    """
    examples = data.training.examples
    too_large = [size for size in batch_sizes if size > examples]
    if too_large:
        raise _larger_than(
            examples, too_large, "Take these sizes out of the space, or train on more examples"
        )


def check_size(batch_size: int, examples: int) -> None:
    """Refuse one batch size above the number of examples.

    Raises:
        DataError: If the batch would be larger than the data.
    """
    if batch_size > examples:
        raise _larger_than(examples, [batch_size], "Pass a smaller batch, or more examples")


def _larger_than(examples: int, sizes: Sequence[int], do: str) -> DataError:
    return DataError(
        f"`batch_size` must be at most the number of training examples, {examples}",
        ", ".join(map(str, sizes)),
        do,
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
    device_memory.reset_peak()
    try:
        input_seconds = _input_seconds(data, recipe)
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise
        return Outcome(ended="out_of_memory", message=str(error)[:MESSAGE_LENGTH])
    instruments = Instruments(recipe, data, goal, options, input_seconds, entered)
    ended, message, full_rate, noise_scale = None, "", None, None
    scaled_before, first_rate = scaled_updates(model), _first_rate(model, recipe)
    try:
        scope = recipe_scope(model, recipe, options)
        with instruments.sampler, tensorflow_private.expected_retraces(), scope as noise_meter:
            instruments.pace.measure_noise_by(noise_meter, model)
            model.fit(
                callbacks=instruments.callbacks,
                **fit_arguments(recipe, data, options, instruments.pace.cuts),
            )
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
        if not _means_out_of_memory(error, recipe.examples_per_pass, options.largest_passed):
            raise
        ended, message = "out_of_memory", str(error)[:MESSAGE_LENGTH]
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
    own = remarks.of(outcome, goal, recipe, input_seconds, remedy, share)
    passes = accumulation.accumulation_remarks(model, recipe)
    told = (*own, *passes, *policies.float8_remarks(model, recipe), *data.remarks)
    return replace(outcome, remarks=told)


# holds True once a training of this process has ended well and left XLA's programs in the GPU
_compiled_before: set[bool] = set()


def _means_out_of_memory(error: Exception, micro_batch: int, largest_passed: int) -> bool:
    """Whether an error means that memory ran out.

    Broken installations raise some of these errors too. Such an error counts only if a smaller
    micro-batch has trained.
    """
    if is_out_of_memory(error):
        return True
    return is_suspect(error) and 0 < largest_passed < micro_batch


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


def _input_seconds(data: Data, recipe: Recipe) -> float:
    """Seconds per batch of the input pipeline without training, after its first batch.

    They are measured over about one pass over the data or one second.
    """
    stream: tf.data.Dataset = data.training.unshuffled(recipe.examples_per_step)
    batches_per_pass = data.training.examples // recipe.examples_per_step + 1
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
