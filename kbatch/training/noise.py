"""Noise scale: measured for a model and its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from scipy import special

from kbatch.callbacks.clock import TrainingClock
from kbatch.callbacks.rate import RateCallbacks, warmup_share
from kbatch.checks import arguments as checks_arguments
from kbatch.data.streams import Source, inputs_of, weighed
from kbatch.errors import MemoryLimitError, ModelError, RecipeError, SearchError, in_one_frame
from kbatch.model_spec import ModelArguments, ModelSpec, shows
from kbatch.models import accumulation
from kbatch.models.compilation import said_of
from kbatch.models.gradient_noise import NoiseMeter
from kbatch.models.maker import ModelMaker, check_known_values
from kbatch.models.preprocessor import preprocess_of
from kbatch.recipe import Recipe, check_recipe
from kbatch.recipe_words import whole_number
from kbatch.rules.noise_scale import NoiseEstimate, critical_batch
from kbatch.runtime import device_memory
from kbatch.runtime.oom import is_out_of_memory
from kbatch.training import checks
from kbatch.training.arguments import FitArguments
from kbatch.training.one_recipe import check_augmentation
from kbatch.training.pace import RunOptions
from kbatch.training.run import recipe_scope
from kbatch.training.trial import Trial

if TYPE_CHECKING:
    from typing_extensions import Unpack


LEVEL, LEAST = 0.95, 3  # pairs at least


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of two means above 0, by Fieller's theorem (1954).

    It is right also where the mean of the denominators is near 0: then it has no upper end. The
    variances are those of successive differences (von Neumann et al. 1941), so that a slow drift of
    the true means is not taken for error.

    Args:
        numerators: Sequence of floats, at least 3.
        denominators: Sequence of as many floats, each measured together with its numerator.

    Returns:
        The lower end, at least 0, and the upper end, which may be infinite.

    Example:
    >>> low, high = ratio_interval([8.1, 7.9, 8.0, 8.2, 7.8], [2.0, 2.1, 1.9, 2.0, 2.0])
    >>> low < 4 < high < 4.6
    True
    >>> ratio_interval([8.1, 7.9, 8.0, 8.2, 7.8], [2.0, -1.9, 1.8, -2.1, 0.4])[1]
    inf
    """
    pairs = np.array([numerators, denominators], float)
    mean, count = pairs.mean(axis=1), pairs.shape[1]
    differences = np.diff(pairs, axis=1)
    covariance = differences @ differences.T / (2 * (count - 1) * count)
    # degrees of freedom of a variance by successive differences
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    bound = float(special.stdtrit(freedom, 0.5 + LEVEL / 2)) ** 2
    # all ratios r with (mean[0] - r mean[1])^2 <= bound * its variance: a r^2 - 2 b r + c <= 0
    (c, b), (_, a) = (np.outer(mean, mean) - bound * covariance).tolist()
    root = math.sqrt(max(b * b - a * c, 0.0))
    if c <= 0:  # the numerator may be 0
        return 0.0, (b + root) / a if a > 0 else math.inf
    if a > 0:
        return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
    return (c / (b + root) if b + root > 0 else 0.0), math.inf


# Chosen by hand: the interval is about a third of the noise scale where that is near the batch.
UPDATES, FEWEST_UPDATES = 200, 10
# More passes tell more of the noise of single examples, and less of a batch fills the device.
PASSES, MOST_PASSES = 8, 32


@dataclass(frozen=True)
class NoiseScale:
    """The gradient noise scale of a model, as `kbatch.noise_scale` measures it.

    Attributes:
        critical_batch: Float, examples: the noise scale, at which a training takes twice the
            fewest possible updates. Infinite where the gradient cannot be told from its noise.
        low: Float, the lower end of its 95 % interval (Fieller's, over updates).
        high: Float, the upper end; infinite if the updates do not show one.
        updates: Integer, number of updates that were measured.
        examples_per_pass: Integer, examples whose gradients were averaged in each pass.
        passes: Integer, passes per update.
        squared_norm: Float, estimate of the squared norm of the gradient, without its noise.
        trace: Float, estimate of the trace of the covariance of single examples' gradients.
        remarks: Tuple of strings, sentences for the user.

    Example:
    >>> print(NoiseScale(231.4, 180.2, 310.7, 100, 8, 8, 0.1, 23.14))
    critical batch 231 (95 % interval 180 to 311), from 100 updates of 8 x 8 examples
    """

    critical_batch: float
    low: float
    high: float
    updates: int
    examples_per_pass: int
    passes: int
    squared_norm: float
    trace: float
    remarks: tuple[str, ...] = ()

    @property
    def learning_rate_rule(self) -> str:
        """String, the rule of this noise scale for `Space`, such as `"gain:480"`.

        It is `"linear"`, the limit of much noise, if the critical batch is infinite.
        """
        if math.isinf(self.critical_batch):
            return "linear"
        return f"gain:{self.critical_batch:.0f}"

    def __str__(self) -> str:
        measured = (
            f"from {self.updates} updates of {self.passes} x {self.examples_per_pass} examples"
        )
        if math.isinf(self.critical_batch):
            return f"critical batch above {self.low:,.0f}, {measured}"
        ends = f"above {self.low:,.0f}"
        if math.isfinite(self.high):
            ends = f"{self.low:,.0f} to {self.high:,.0f}"
        critical = f"critical batch {self.critical_batch:,.0f}"
        return f"{critical} ({LEVEL * 100:.0f} % interval {ends}), {measured}"


@shows(ModelSpec)
@in_one_frame
def noise_scale(
    build: Callable[..., keras.Model] | ModelSpec,
    x: Any,
    y: Any = None,
    recipe: Recipe | None = None,
    *,
    updates: int = UPDATES,
    sample_weight: Any = None,
    batched: bool | None = None,
    class_weight: Mapping[int, float] | None = None,
    verbose: Any = 0,
    **model_arguments: Unpack[ModelArguments],
) -> NoiseScale:
    """Measure the gradient noise scale of a model: the batch above which larger ones save little.

    Use it before a search, to see which batch sizes are worth their while. The model is trained by
    the recipe for some updates, of which the second half is measured, and then discarded. The scale
    grows while a model learns: more updates show it later (McCandlish et al. 2018).

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not, or a
            `kbatch.ModelSpec`.
        x: Array, tensor, list, tuple or dict of them, a `tf.data.Dataset` of `(x, y)`, batched or
            not, or a `keras.utils.PyDataset`.
        y: Labels, for arrays.
        recipe: `Recipe` to train by, of constant batches and plain training. Without accumulation
            its batch is split into about 8 equal passes. Defaults to `Recipe()`.
        updates: Integer, weight updates to train for. Defaults to `200`.
        sample_weight: Weights of the examples, for arrays. Optional.
        batched: Boolean, whether a dataset's elements are batches. Defaults to finding out.
        class_weight: Mapping from class to weight. Optional.
        verbose: As in Keras' `fit`; 1 shows a bar of passes. Defaults to `0`.
        **model_arguments: `loss`, `metrics`, `seed`, `values` and `declare`; see
            `kbatch.ModelSpec`.

    Returns:
        The `NoiseScale`, with `critical_batch`, `low` and `high` in examples.

    Raises:
        KbatchError: If recipe, model or data cannot be used; the message says what to do.

    Example:
    ```python
    noise = kbatch.noise_scale(build, x, y, kbatch.Recipe(batch_size=64, learning_rate=1e-3))
    print(noise)
    space = kbatch.Space(learning_rate_rule={"sgd": noise.learning_rate_rule})
    ```
    """
    device_memory.tell_of_unused_card()
    recipe = split(Recipe() if recipe is None else recipe)
    count = whole_number(updates, FEWEST_UPDATES)
    if count is None:
        raise SearchError(
            f"`updates` must be a whole number of at least {FEWEST_UPDATES}",
            updates,
            f"Pass updates={UPDATES}, say",
        )
    check_augmentation(recipe)
    arguments = FitArguments(
        x, y, sample_weight, batched=batched, class_weight=class_weight, verbose=verbose
    )
    spec = ModelSpec.of(build, **model_arguments)
    maker = ModelMaker.of(spec)
    hp = maker.hyperparameters()
    trial = Trial()
    try:
        model = trial.make(maker, recipe, hp)
        if trial.failure:
            raise _too_large(recipe, trial.failure.message)
        source = arguments.training(lambda: inputs_of(model), preprocess_of(model))
        checks.check_size(recipe.batch_size, source.examples)
        check_known_values(spec.values, hp, lambda other: maker.raw(recipe.policy, other))
        loss = said_of(model, maker.arguments).get("loss")
        checks.check_agreement_in_training(model, loss, source)
        if class_weight is not None:
            checks_arguments.check_class_weights(class_weight, source, model, loss)
        options = RunOptions(
            maker.seed,
            maker.own_policy,
            class_weight=class_weight,
            verbose=verbose,
            noise_interval=1,
        )
        estimates = _estimates(model, recipe, source, count, options)
        return _noise_scale(estimates, recipe, accumulation.accumulation_remarks(model, recipe))
    finally:
        trial.forget()


def split(recipe: Recipe) -> Recipe:
    """Return a recipe that accumulates over equal passes: the recipe itself, or its batch split.

    Example:
    >>> split(Recipe(batch_size=96)).micro_batch_size
    12
    """
    check_recipe(recipe)
    for name in ("training", "batch_schedule", "schedule", "ema"):
        if getattr(recipe, name) != getattr(Recipe, name):
            raise RecipeError(
                f"The recipe of a noise scale must have {name}={getattr(Recipe, name)!r}",
                f"{name}={getattr(recipe, name)!r}",
                f"Pass dataclasses.replace(recipe, {name}={getattr(Recipe, name)!r})",
            )
    if recipe.accumulation_steps > 1:
        return recipe
    size = recipe.batch_size
    passes = [each for each in range(2, min(MOST_PASSES, size) + 1) if size % each == 0]
    if not passes:
        raise RecipeError(
            "The batch of a noise scale must split into equal passes, "
            f"at least 2 and at most {MOST_PASSES}",
            f"batch_size={size}",
            "Pass a multiple of 8, such as 64",
        )
    chosen = min(passes, key=lambda each: abs(math.log(each / PASSES)))
    return replace(recipe, micro_batch_size=size // chosen)


class _Recorder(keras.callbacks.Callback):
    """Keeps the estimate of each update past the first half of a training."""

    def __init__(self, noise_meter: NoiseMeter, clock: TrainingClock, updates: int) -> None:
        super().__init__()
        self._meter, self._clock, self._updates = noise_meter, clock, updates
        self._seen = 0
        self.estimates: list[NoiseEstimate] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updates, estimate = self._meter.last()
        if updates > self._seen and self._clock.updates > self._updates // 2:
            self.estimates.append(estimate)
        self._seen = updates


def _estimates(
    model: keras.Model, recipe: Recipe, source: Source, updates: int, options: RunOptions
) -> list[NoiseEstimate]:
    """Train a model, and return the estimates of the second half of its updates."""
    clock = TrainingClock(recipe.accumulation_steps)
    rate = RateCallbacks(lambda: warmup_share(clock.updates, recipe.warmup_updates))
    risers = [rate.before, rate.after] if recipe.warmup_updates else []
    try:
        with recipe_scope(model, recipe, options) as noise_meter:
            if noise_meter is None:
                raise ModelError(
                    "A noise scale must be measured on one device",
                    "a distribution strategy",
                    "Build the model outside of its scope",
                )
            recorder = _Recorder(noise_meter, clock, updates)
            batches = source.stream(recipe.examples_per_pass, options.seed)
            model.fit(
                weighed(batches, options.class_weight),
                steps_per_epoch=updates * recipe.accumulation_steps,
                callbacks=[clock, *risers, recorder],
                verbose=options.verbose,
                shuffle=False,  # the stream shuffles itself, and Keras warns otherwise
            )
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise
        raise _too_large(recipe, str(error)) from error
    return recorder.estimates


def _too_large(recipe: Recipe, message: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"A pass of {recipe.examples_per_pass} examples must fit into memory",
        message.splitlines()[0][:200] if message else "out of memory",
        "Pass a recipe with a smaller micro_batch_size",
    )


def _noise_scale(
    estimates: Sequence[NoiseEstimate], recipe: Recipe, remarks: tuple[str, ...]
) -> NoiseScale:
    """The noise scale of the estimates of updates, and its interval."""
    if len(estimates) < LEAST:
        raise ModelError(
            f"The gradients of at least {LEAST} updates must be finite",
            f"{len(estimates)} in the second half of the training",
            "Pass a lower learning rate",
        )
    traces, count = [each.trace for each in estimates], len(estimates)
    squared_norms = [each.squared_norm for each in estimates]
    low, high = ratio_interval(traces, squared_norms)
    mean = NoiseEstimate(sum(squared_norms) / count, sum(traces) / count)
    found = critical_batch(mean)
    return NoiseScale(
        math.inf if found is None else found,
        low,
        high,
        count,
        recipe.examples_per_pass,
        recipe.accumulation_steps,
        mean.squared_norm,
        mean.trace,
        remarks,
    )
