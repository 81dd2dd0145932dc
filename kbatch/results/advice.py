"""Inquiry: what a seasoned colleague would say of a recipe, and a recipe to start with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.errors import DataError, RecipeError, SearchError, in_one_frame
from kbatch.memory._max_batch import MaxBatch, Table
from kbatch.recipe import Recipe, check_recipe
from kbatch.recipe_words import BY_PROGRESS, CONSTANT, is_number, whole_number
from kbatch.results._advice_evidence import (
    Advice,
    Evidence,
    ProjectFacts,
    Results,
    facts_of,
    traits_of,
)
from kbatch.results._advice_rules import advice_on
from kbatch.rules import batch_schedule, scaling
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE
from kbatch.runtime import device
from kbatch.space import Combination

if TYPE_CHECKING:
    import keras


@in_one_frame
def advise(
    recipe: Recipe,
    model: keras.Model | None = None,
    results: Any = None,
    *,
    max_batch: int | MaxBatch | Table | None = None,
    training_data: Any = None,
    validation_data: Any = None,
    examples: int | None = None,
    epochs: float | None = None,
    devices: int = 1,
    pretrained: bool = False,
) -> list[Advice]:
    """Say what a seasoned colleague would about a recipe, with reasons and sources.

    Use it before a long training, or on the best recipe of a search. Each rule speaks only where
    something is wrong, so a good recipe gets an empty list. Where the results of a search show that
    something does no harm, they count, and the rule of thumb is silent. Without model and data,
    TensorFlow is imported only to ask whether float16 is fast on this machine.

    Args:
        recipe: `Recipe` to advise on.
        model: `keras.Model`, such as `build()`; for advice on normalization and on fine-tuning.
            Optional.
        results: A tuner after `search`, the folder of a search, or the table of
            `kbatch.results.load`. Optional.
        max_batch: The largest batch that fits in one pass: an integer, or what `find_max_batch` or
            `max_batches` returned. Defaults to what the search was given.
        training_data: `(x, y)` or a dataset. Optional.
        validation_data: `(x, y)` or a dataset, which is compared with `training_data`. Optional.
        examples: Integer, number of training examples. Defaults to that of the training data or of
            the search.
        epochs: Number, passes over the data that you plan. Defaults to the length of a trial.
        devices: Integer, devices that share each pass. Defaults to `1`.
        pretrained: Boolean, whether the model has pretrained weights. A model with frozen layers
            or statistics of an earlier training is taken for pretrained.

    Returns:
        A list of `Advice`, the most important first.

    Raises:
        KbatchError: If an argument cannot be used; the message says what to do.

    Example:
    >>> for advice in advise(Recipe(batch_size=256, optimizer="sgd", learning_rate=0.01)):
    ...     print(advice)
    Scale the learning rate with the batch: at batch 256, 8 times 32, sgd takes about 0.08 instead \
of 0.01.
    >>> advise(Recipe())
    []
    """
    return advice_on(
        evidence_of(
            recipe,
            model,
            results,
            max_batch=max_batch,
            training_data=training_data,
            validation_data=validation_data,
            examples=examples,
            epochs=epochs,
            devices=devices,
            pretrained=pretrained,
        )
    )


def evidence_of(
    recipe: Any,
    model: Any = None,
    results: Any = None,
    *,
    max_batch: Any = None,
    training_data: Any = None,
    validation_data: Any = None,
    examples: Any = None,
    epochs: Any = None,
    devices: Any = 1,
    pretrained: Any = False,
) -> Evidence:
    """Check the arguments of `advise`, and read them."""
    check_recipe(recipe)
    facts = ProjectFacts(Results()) if results is None else facts_of(results)
    count = _length(training_data) if examples is None else _whole("examples", examples)
    count = facts.training_examples if count is None else count
    return Evidence(
        recipe,
        None if model is None else traits_of(model),
        None if results is None else _measured_on(facts.results, _length(validation_data)),
        _largest_batch(recipe, facts.limits if max_batch is None else max_batch),
        count,
        _updates(recipe, epochs, count),
        _shared(training_data, validation_data) or facts.shared,
        facts.own_optimizer,
        facts.space,
        _whole("devices", devices),
        _pretrained(pretrained),
    )


def _whole(name: str, given: Any) -> int:
    number = whole_number(given)
    if number is None:
        raise SearchError(
            f"`{name}` must be a whole number of at least 1", given, f"Pass {name}=2, say"
        )
    return number


def _pretrained(given: Any) -> bool:
    if not isinstance(given, bool):
        raise SearchError("`pretrained` must be True or False", given, "Say which")
    return given


def _measured_on(results: Results, validation_examples: int | None) -> Results:
    """Results that do not tell how many examples they were measured on, with that number."""
    if results.validation_examples or validation_examples is None:
        return results
    return Results(results.trainings, results.metric, validation_examples)


def _updates(recipe: Recipe, epochs: Any, examples: int | None) -> int | None:
    """The updates of so many passes over the data; `None` if nothing is planned or foreseen."""
    if epochs is None:
        return None
    if not is_number(epochs) or epochs <= 0:
        raise SearchError("`epochs` must be a number above 0", epochs, "Pass epochs=20, say")
    if examples is None:
        raise SearchError(
            "`epochs` must come with the number of training examples",
            f"epochs={epochs} alone",
            "Pass examples=50_000, say, or training_data",
        )
    growth, seen = recipe.growth, epochs * examples
    if growth.kind == CONSTANT:
        return math.ceil(seen / recipe.batch_size)
    if growth.kind not in BY_PROGRESS:
        return None  # what is measured decides
    passes = recipe.accumulation_steps
    return batch_schedule.updates(growth.kind, seen, recipe.batch_size, growth.factor, passes)


def _largest_batch(recipe: Recipe, limits: Any) -> int | None:
    """The largest batch that fits in one pass of a recipe's kind; `None` if unknown."""
    if isinstance(limits, MaxBatch):
        return limits.batch_size
    if isinstance(limits, Table):
        row = limits.row(Combination.of(recipe))
        return None if row is None else row.batch_size
    if limits is None:
        return None
    number = whole_number(limits)
    if number is None:
        raise SearchError(
            "`max_batch` must be a batch size, or what find_max_batch or max_batches returned",
            type(limits).__name__,
            "Pass max_batch=256, say",
        )
    return number


def _is_pair(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) in (2, 3)


def _length(data: Any) -> int | None:
    """The number of examples of `(x, y)`; `None` of a dataset, which would have to be read."""
    if not _is_pair(data):
        return None
    from kbatch.data.arrays import as_arrays, common_length

    return common_length(as_arrays(tuple(part for part in data if part is not None)))


def _shared(training: Any, validation: Any) -> tuple[int, int] | None:
    """How many validation examples are training examples too, of those looked at."""
    if training is None and validation is None:
        return None
    from kbatch.checks.validation import DATASETS, shared_of

    for name, data in (("training_data", training), ("validation_data", validation)):
        if data is not None and not _is_pair(data) and not isinstance(data, DATASETS):
            raise DataError(
                f"`{name}` must be (x, y) or a dataset", type(data).__name__, "Pass one of these"
            )
    if training is None or validation is None:
        return None
    if _is_pair(training) and _is_pair(validation):
        return shared_of(training, validation)
    return (1, 1) if training is validation else None  # reading datasets would be dear


# Rates at batch 32. SGD with momentum 0.9, Adam and AdamW: Keras' defaults. LARS and LAMB: the
# middle of what `Space` searches, on a log scale, near You et al. 2020 for LAMB.
RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3, "lars": 1.0, "lamb": 3e-3}
# A tenth to a twentieth: Devlin et al. 2019 (Adam 2e-5 to 5e-5), Li et al. 2020 (SGD).
FINE_RATES = {"sgd": 1e-3, "adam": 5e-5, "adamw": 5e-5, "lars": 0.1, "lamb": 3e-4}
WEIGHT_DECAY = 0.01  # of AdamW in Devlin et al. 2019
FAST_BATCH = 8 * REFERENCE_BATCH_SIZE  # to where Goyal et al. 2017 scale without loss, and further
SMALL_PASS = 16  # examples, the fewest for batch normalization (Wu & He 2018)
FEWEST_UPDATES_A_PASS = 10  # over the data; chosen by hand
WARMUP_UPDATES = 100  # where nobody tells how many examples there are; chosen by hand
FINE_WARMUP_UPDATES = 50  # chosen by hand
FEWEST_DEVICES = 2


@dataclass(frozen=True)
class Means:
    """What a starting recipe is made of."""

    optimizer: str = ""  # that the user wants; empty for the aim's own
    largest_batch: int | None = None  # that fits in one pass on one device
    devices: int | None = None  # that share each pass; `None` for those that are visible
    examples: int | None = None  # to train on

    def batch_of(self, size: int) -> int:
        """Return a batch size of which a pass over the data has at least ten updates."""
        if self.examples is None:
            return size
        while size > SMALL_PASS and size * FEWEST_UPDATES_A_PASS > self.examples:
            size //= 2
        return min(size, self.examples)

    def recipe(self, batch_size: int, rates: dict[str, float], own: str, **fields: Any) -> Recipe:
        """Return a recipe whose rate and warm-up follow the rules of its batch size."""
        optimizer = self.optimizer or own
        rule = scaling.DEFAULT_LEARNING_RATE_RULES[optimizer]
        limit = fields.pop("micro_batch_size", None)
        if self.largest_batch is not None:
            limit = self.largest_batch * (self.devices or 1)
        return Recipe(
            batch_size,
            optimizer,
            rates[optimizer] * scaling.learning_rate_factor(batch_size, rule),
            micro_batch_size=scaling.micro_batch_of(batch_size, limit),
            **{"warmup_updates": self.warmup_of(batch_size), **fields},
        )

    def warmup_of(self, batch_size: int) -> int:
        """Return the updates of warm-up; none up to batch 32."""
        if self.examples is not None:
            return scaling.updates_of_warmup(batch_size, self.examples)
        return WARMUP_UPDATES if batch_size > REFERENCE_BATCH_SIZE else 0


@in_one_frame
def starting_recipe(
    aim: str = "accuracy",
    *,
    optimizer: str | None = None,
    largest_batch: int | None = None,
    devices: int | None = None,
    examples: int | None = None,
) -> Recipe:
    """Return a recipe to start with, for one of five aims.

    Use it as the baseline of a search, or where there is no time for one. Learning rate and warm-up
    follow the batch size by the rules of `Space`.

    * `"accuracy"`: batch 32 (Masters & Luschi 2018: small batches reach the best accuracy over the
      widest range of rates), AdamW with weight decay 0.01 (Loshchilov & Hutter 2019) and a cosine
      decay (Loshchilov & Hutter 2017).
    * `"speed"`: batch 256 with a scaled rate and warm-up (Goyal et al. 2017), Adam; mixed_float16
      on a GPU with tensor cores (Micikevicius et al. 2018), for which TensorFlow is asked.
    * `"memory"`: SGD, which holds one copy of the gradient where Adam holds two, batch 32 in passes
      of 16 (Wu & He 2018: fewer spoil batch normalization), and activations recomputed (Chen et al.
      2016).
    * `"fine-tuning"`: batch 32 and AdamW at 5e-5 with a short warm-up (Devlin et al. 2019).
    * `"devices"`: batch 32 on each device, so that it grows with their number, with the rate scaled
      and warmed up (Goyal et al. 2017), Adam.

    Args:
        aim: `"accuracy"`, `"speed"`, `"memory"`, `"fine-tuning"` or `"devices"`. Defaults to
            `"accuracy"`.
        optimizer: Another optimizer than the aim's own: `"sgd"`, `"adam"`, `"adamw"`, `"lars"` or
            `"lamb"`. Optional.
        largest_batch: Integer, the examples that fit in one pass on one device, such as
            `kbatch.find_max_batch(…).batch_size`; a larger batch accumulates. Optional.
        devices: Integer, devices that share a batch, for the aim `"devices"`. Defaults to the GPUs
            that TensorFlow sees, at least `2`.
        examples: Integer, number of training examples; a batch has at least ten updates in a pass,
            and warm-up its length by the rule. Without it warm-up takes 100 updates. Optional.

    Returns:
        A `Recipe`.

    Raises:
        RecipeError: If an argument cannot be used.

    Example:
    >>> print(starting_recipe("devices", devices=4, examples=50_000))
    batch 128, adam 0.002, warm-up 293
    >>> print(starting_recipe("accuracy"))
    batch 32, adamw 0.001, weight decay 0.01, cosine
    """
    if not isinstance(aim, str) or aim not in AIMS:
        raise RecipeError(f"`aim` must be one of {', '.join(AIMS)}", aim, "Pass one of these names")
    if optimizer is not None and (not isinstance(optimizer, str) or optimizer not in RATES):
        raise RecipeError(
            f"`optimizer` must be one of {', '.join(RATES)}", optimizer, "Pass one of these names"
        )
    if devices is not None and aim != "devices":
        raise RecipeError(
            '`devices` must come with aim="devices"',
            f"devices={devices!r} and aim={aim!r}",
            "Leave it out, or change the aim",
        )
    means = Means(
        optimizer or "",
        _whole_number("largest_batch", largest_batch),
        _whole_number("devices", devices),
        _whole_number("examples", examples),
    )
    return AIMS[aim](means)


def _for_accuracy(means: Means) -> Recipe:
    size = means.batch_of(REFERENCE_BATCH_SIZE)
    return means.recipe(size, RATES, "adamw", weight_decay=WEIGHT_DECAY, schedule="cosine")


def _for_speed(means: Means) -> Recipe:

    policy = device.fast_policies()[-1]
    return means.recipe(means.batch_of(FAST_BATCH), RATES, "adam", policy=policy)


def _for_memory(means: Means) -> Recipe:
    size = means.batch_of(REFERENCE_BATCH_SIZE)
    return means.recipe(size, RATES, "sgd", micro_batch_size=SMALL_PASS, recompute="minimal")


def _for_fine_tuning(means: Means) -> Recipe:
    size = means.batch_of(REFERENCE_BATCH_SIZE)
    warm = FINE_WARMUP_UPDATES
    if means.examples is not None:
        warm = min(warm, means.examples // size)  # at most one pass
    return means.recipe(
        size, FINE_RATES, "adamw", weight_decay=WEIGHT_DECAY, warmup_updates=warm, schedule="cosine"
    )


def _for_devices(means: Means) -> Recipe:
    devices = means.devices or max(_visible_gpus(), FEWEST_DEVICES)
    # The batch must be shared out equally.
    size = max(means.batch_of(REFERENCE_BATCH_SIZE * devices) // devices, 1) * devices
    limited = Means(means.optimizer, means.largest_batch, devices, means.examples)
    return limited.recipe(size, RATES, "adam")


AIMS: dict[str, Callable[[Means], Recipe]] = {
    "accuracy": _for_accuracy,
    "speed": _for_speed,
    "memory": _for_memory,
    "fine-tuning": _for_fine_tuning,
    "devices": _for_devices,
}


def _visible_gpus() -> int:
    import tensorflow as tf

    return len(tf.config.get_visible_devices("GPU"))


def _whole_number(name: str, given: Any) -> int | None:
    number = None if given is None else whole_number(given)
    if given is not None and number is None:
        raise RecipeError(
            f"`{name}` must be a whole number of at least 1", repr(given), f"Pass {name}=2, say"
        )
    return number
