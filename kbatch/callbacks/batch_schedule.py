"""Batch schedule: a plain `fit` whose batch grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.rate import Rate, end_epoch, go_on
from kbatch.data.order import Cuts, SizeNow
from kbatch.data.streams import training_source
from kbatch.errors import DataError, ModelError, RecipeError, made_in_one_frame
from kbatch.model_spec import LEAST_SEED
from kbatch.recipe_words import GROWTH_WORDS, BatchGrowth, whole_number
from kbatch.rules import batch_schedule, scaling
from kbatch.runtime import keras_private


def by_progress(
    growth: BatchGrowth, last: int, multiple: int, progress: Callable[[int], float]
) -> SizeNow:
    """Return a function that chooses sizes by the share of the training behind it."""
    return lambda examples: batch_schedule.at(
        growth.kind, progress(examples), last, growth.factor, multiple
    )


def by_plateau(
    growth: BatchGrowth,
    last: int,
    multiple: int,
    values: Callable[[], Iterable[float]],
    direction: str,
) -> SizeNow:
    """Return a function that doubles the size whenever a metric has stopped improving."""

    def size_now(examples: int) -> int:
        doublings = batch_schedule.plateaus(values(), direction)
        return batch_schedule.doubled(doublings, last, growth.factor, multiple)

    return size_now


def by_noise(
    growth: BatchGrowth, last: int, multiple: int, noise_scale: Callable[[], float | None]
) -> SizeNow:
    """Return a function that chooses the gradient noise scale as the size, and never a smaller one.

    Args:
        growth: `BatchGrowth` of kind `"noise"`.
        last: Integer, the last batch size.
        multiple: Integer that divides every size.
        noise_scale: Function that returns the noise scale in examples as last measured, or `None`
            before that. It is called in a thread of TensorFlow, so it should not measure itself.
    """
    sizes = [batch_schedule.first(last, growth.factor, multiple)]

    def size_now(examples: int) -> int:
        measured = noise_scale()
        if measured is not None:
            now = batch_schedule.within(measured, last, growth.factor, multiple)
            sizes[0] = max(sizes[0], now)
        return sizes[0]

    return size_now


WITHOUT_STRATEGY = "Leave out the distribution strategy"


@made_in_one_frame
class BatchSchedule(keras.callbacks.Callback):
    """Callback that lets the batch grow within a plain `model.fit`, and the learning rate with it.

    Use it where small batches learn fast at first and large ones are fast later: a growing batch
    takes the place of a falling learning rate (Smith et al. 2018). Give its `batches` to `fit`.
    Other callbacks see the full learning rate but for the train step itself, and may set another.

    Every epoch holds every example once, in another order each time; its last batch may be smaller.
    The model is traced as with one batch size, and the optimizer goes on.

    Args:
        schedule: `"linear:8"`, `"exponential:8"` or `"steps:8"` over the epochs, `"plateau:8"` when
            a metric stops improving, or `"noise:8"` by a noise scale. The number is the last batch
            size over the first. See `kbatch.Recipe`.
        batch_size: Integer, the last and largest batch size. The learning rate of the model belongs
            to it.
        epochs: Integer, epochs over which the batch grows. `None` (the default) for all of `fit`.
        rule: How the learning rate of a batch follows from its size: `"linear"`, `"sqrt"` or
            `"constant"`. `None` (the default) takes linear for SGD and the square root for other
            optimizers.
        monitor: String, the metric in the logs of an epoch, for `"plateau"`. The batch doubles
            after two epochs in a row without a better value. Defaults to `"val_loss"`.
        direction: `"max"` or `"min"`, the direction in which the metric should go. Defaults to
            `"min"`.
        noise_scale: Function that returns the gradient noise scale in examples, or `None` before it
            is known, for `"noise"`. It is called in a thread of TensorFlow.
        seed: Integer, seed of the order of the examples. Defaults to `0`.

    Attributes:
        sizes: Tuple of integers, the size of each batch trained so far.

    Raises:
        RecipeError: If an argument is not one of the above.
        SpaceError: If the rule is unknown.
        ModelError: At the start of `fit`, if it got other data, or if the model cannot change its
            batch or its learning rate: XLA, `steps_per_execution`, an accumulating optimizer, a
            schedule of the learning rate.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> x, y = np.ones((64, 3)), np.ones((64, 1))
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> schedule = BatchSchedule("linear:4", batch_size=32)
    >>> history = model.fit(schedule.batches(x, y), epochs=3, callbacks=[schedule], verbose=0)
    >>> schedule.sizes
    (8, 8, 8, 11, 11, 11, 7, 15, 18, 22, 9, 25, 29, 10)
    """

    def __init__(
        self,
        schedule: str,
        batch_size: int,
        epochs: int | None = None,
        rule: str | None = None,
        monitor: str = "val_loss",
        direction: str = "min",
        noise_scale: Callable[[], float | None] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        growth, size = BatchGrowth.parse(schedule), whole_number(batch_size)
        if growth is None:
            raise RecipeError(f"`schedule` must be {GROWTH_WORDS}", schedule, "Pass one of these")
        if size is None:
            raise RecipeError(
                "`batch_size` must be a whole number of at least 1", batch_size, "Pass 256, say"
            )
        if growth.kind == "noise" and noise_scale is None:
            raise RecipeError(
                "A batch that grows by the noise scale must have it measured",
                f"{schedule!r} and no `noise_scale`",
                "Pass a function, or another schedule",
            )
        if rule is not None:
            scaling.learning_rate_factor(size, rule)
        _check_arguments(epochs, monitor, direction, noise_scale, seed)
        self.schedule, self.batch_size, self.epochs, self.rule = growth, size, epochs, rule
        self.monitor, self.direction, self.noise_scale = monitor, direction, noise_scale
        self.seed = seed
        self._values: list[float] = []
        self._batches, self._first_epoch = 0, 0
        self._is_training = False
        self._cuts: Cuts | None = None
        self._of_pass = 1
        self._rate = Rate(self._share)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tuple of integers, the size of each batch trained so far."""
        return tuple(self._cuts.size(number) for number in range(self._batches) if self._cuts)

    def batches(
        self, x: Any, y: Any = None, sample_weight: Any = None, batched: bool | None = None
    ) -> tf.data.Dataset:
        """Return the batches to give to `fit`.

        Args:
            x: Array, tensor, list, tuple or dict of them, a `tf.data.Dataset` of `(x, y)`, batched
                or not, or a `keras.utils.PyDataset`.
            y: Labels, for arrays.
            sample_weight: Weights of the examples, for arrays. Optional.
            batched: Boolean, whether a dataset's elements are batches. Defaults to finding out.

        Raises:
            DataError: If the data cannot be batched, or are fewer than a batch.
            ModelError: Under a distribution strategy.
        """
        if tf.distribute.has_strategy():
            raise ModelError(
                "A fit whose batch grows must train on one device",
                type(tf.distribute.get_strategy()).__name__,
                WITHOUT_STRATEGY,
            )
        source = training_source(x, y, sample_weight, batched=batched)
        if self.batch_size > source.examples:
            raise DataError(
                f"`batch_size` must be at most the number of examples, {source.examples}",
                self.batch_size,
                "Pass a smaller batch, or more examples",
            )
        self._of_pass = source.examples
        self._cuts = Cuts(self._when_training(self._size_now()), within=source.examples)
        return source.cut(self._cuts.one_pass(), self.seed)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a fit that cannot change its batch, and begin with the first size."""
        self._check()
        self._values.clear()
        self._batches, self._is_training = 0, True
        if self._cuts:
            self._cuts.reset()
        self._rate.model = self.model
        self._rate.take()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the first epoch, which may be later than 0."""
        if self._batches == 0:
            self._first_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate of the batch."""
        self._rate.train()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Show the full learning rate again, and end the epoch after the last batch of a pass."""
        self._rate.show()
        self._batches += 1
        if self._cuts and self._cuts.examples(self._batches) % self._of_pass == 0:
            end_epoch(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Go on with the next epoch, and note the metric."""
        go_on(self.model)
        if self.schedule.kind == "plateau":
            if self.monitor not in (logs or {}):
                raise ModelError(
                    f"`monitor` must be among the metrics of an epoch ({', '.join(logs or {})})",
                    self.monitor,
                    "Pass one of these, or validation_data to fit",
                )
            self._values.append(float(logs[self.monitor]))

    def on_train_end(self, logs: Any = None) -> None:
        """Hand out no more batches."""
        self._is_training = False

    def _check(self) -> None:
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        rate = keras_private.learning_rate_setting(optimizer)
        if self._cuts is None or self.params.get("steps") is not None:
            received, do = "other data, or steps_per_epoch", "Pass schedule.batches(x, y) only"
        elif self.model.jit_compile:
            received, do = "jit_compile=True", "Compile the model with jit_compile=False"
        elif getattr(self.model, "steps_per_execution", 1) != 1:
            received, do = "steps_per_execution above 1", "Leave it out of compile()"
        elif optimizer.gradient_accumulation_steps:
            received, do = "gradient_accumulation_steps", "Leave it out, or use kbatch.train"
        elif not isinstance(rate, keras.Variable):
            received, do = "a learning rate that is not a number", "Compile with a number"
        else:
            return
        raise ModelError("A fit whose batch grows must be able to change it", received, do)

    def _size_now(self) -> SizeNow:
        growth, last = self.schedule, self.batch_size
        if growth.kind == "plateau":
            return by_plateau(growth, last, 1, lambda: list(self._values), self.direction)
        if growth.kind == "noise" and self.noise_scale is not None:
            return by_noise(growth, last, 1, self.noise_scale)
        return by_progress(growth, last, 1, self._progress)

    def _when_training(self, size_now: SizeNow) -> SizeNow:
        def checked(examples: int) -> int:
            if not self._is_training:
                raise ModelError(
                    "The schedule must be a callback of the fit that gets its batches, and the "
                    "model on one device",
                    "a fit without it, or a model of a distribution strategy, which fetches "
                    "batches before its callbacks begin",
                    f"Pass callbacks=[schedule]. {WITHOUT_STRATEGY}",
                )
            return size_now(examples)

        return checked

    def _progress(self, examples: int) -> float:
        epochs = self.epochs or self.params["epochs"]
        return (self._first_epoch + examples / self._of_pass) / epochs

    def _share(self) -> float:
        if self._cuts is None:
            return 1.0
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        name = type(optimizer).__name__.lower()
        rule = self.rule or scaling.DEFAULT_LEARNING_RATE_RULES.get(name, "sqrt")
        full = scaling.learning_rate_factor(self.batch_size, rule)
        return scaling.learning_rate_factor(self._cuts.size(self._batches), rule) / full


def _check_arguments(
    epochs: Any, monitor: Any, direction: Any, noise_scale: Any, seed: Any
) -> None:
    """Refuse arguments that would be found out in a thread of TensorFlow, or not at all."""
    if epochs is not None and whole_number(epochs) is None:
        must, received = "`epochs` must be a whole number of at least 1, or None", epochs
        do = "Pass the epochs over which the batch grows, or leave it out"
    elif not isinstance(monitor, str):
        must, received = "`monitor` must be the name of a metric", monitor
        do = 'Pass "val_loss", say'
    elif direction not in ("max", "min"):
        must, received = '`direction` must be "max" or "min"', direction
        do = "Say where the metric should go"
    elif noise_scale is not None and not callable(noise_scale):
        must, received = "`noise_scale` must be a function that returns examples", noise_scale
        do = "Pass lambda: 480.0, say"
    elif whole_number(seed, LEAST_SEED) is None:
        must, received, do = "`seed` must be a whole number", seed, "Pass seed=0, say"
    else:
        return
    raise RecipeError(must, repr(received), do)
