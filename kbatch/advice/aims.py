"""Aims: a recipe to start with for accuracy, speed, small memory, fine-tuning or devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbatch.errors import RecipeError, in_one_frame
from kbatch.recipe import Recipe
from kbatch.recipe_fields import whole_number
from kbatch.rules import scaling
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE
from kbatch.runtime import precision

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
    """What a starting recipe is made of.

    Attributes:
        optimizer: String, the optimizer that the user wants; empty for the aim's own.
        largest_batch: Integer, examples that fit in one pass on one device, or `None`.
        devices: Integer, devices that share each pass, or `None` for those that are visible.
        examples: Integer, number of training examples, or `None`.
    """

    optimizer: str = ""
    largest_batch: int | None = None
    devices: int | None = None
    examples: int | None = None

    def batch_of(self, size: int) -> int:
        """Return a batch size of which a pass over the data has at least ten updates."""
        if self.examples is None:
            return size
        while size > SMALL_PASS and size * FEWEST_UPDATES_A_PASS > self.examples:
            size //= 2
        return min(size, self.examples)

    def recipe(self, batch_size: int, rates: dict[str, float], own: str, **fields: Any) -> Recipe:
        """Return a recipe whose rate and warm-up follow the rules of its batch size.

        Args:
            batch_size: Integer.
            rates: Dict from optimizer to its rate at batch 32.
            own: String, the aim's own optimizer.
            **fields: Other fields of the recipe.
        """
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
        _whole("largest_batch", largest_batch),
        _whole("devices", devices),
        _whole("examples", examples),
    )
    return AIMS[aim](means)


def _for_accuracy(means: Means) -> Recipe:
    size = means.batch_of(REFERENCE_BATCH_SIZE)
    return means.recipe(size, RATES, "adamw", weight_decay=WEIGHT_DECAY, schedule="cosine")


def _for_speed(means: Means) -> Recipe:

    policy = precision.fast_policies()[-1]
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


def _whole(name: str, given: Any) -> int | None:
    number = None if given is None else whole_number(given)
    if given is not None and number is None:
        raise RecipeError(
            f"`{name}` must be a whole number of at least 1", repr(given), f"Pass {name}=2, say"
        )
    return number
