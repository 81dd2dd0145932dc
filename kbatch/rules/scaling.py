"""Scaling: the training settings of a recipe, carried to its batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbatch import plain_text
from kbatch.errors import SpaceError
from kbatch.recipe_words import COMPILED
from kbatch.rules import noise_scale

REFERENCE_BATCH_SIZE = 32  # the default batch size of Keras' `fit`
LEARNING_RATE_RULES = ("linear", "sqrt", "constant")
GAIN = "gain"  # with the noise scale: "gain:480"
DEFAULT_LEARNING_RATE_RULES = {
    "sgd": "linear",
    "adam": "sqrt",
    "adamw": "sqrt",
    "lars": "sqrt",
    "lamb": "sqrt",
}


def learning_rate_factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales a learning rate from batch 32 to `batch_size`.

    Rules are `"linear"` (`batch_size / 32`; Goyal et al. 2017, for SGD), `"sqrt"` (its square root;
    Hoffer et al. 2017, Malladi et al. 2022 for Adam, You et al. 2020 for LAMB), `"constant"`, and
    `"gain:480"`: AdaScale's gain at a gradient noise scale of 480 examples, as `kbatch.noise_scale`
    measures it (Johnson et al. 2020, for SGD). It lies between `"constant"` (no noise) and
    `"linear"` (noise only).

    Example:
    >>> [learning_rate_factor(128, rule) for rule in ("linear", "sqrt", "constant")]
    [4.0, 2.0, 1.0]
    >>> learning_rate_factor(128, "gain:128"), learning_rate_factor(32, "gain:128")
    (2.5, 1.0)
    """
    ratio = batch_size / REFERENCE_BATCH_SIZE
    if rule == "linear":
        return ratio
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule == "constant":
        return 1.0
    return noise_scale.gain(batch_size, _noise_scale(rule), REFERENCE_BATCH_SIZE)


def _noise_scale(rule: object) -> float:
    """Read the noise scale out of a rule such as `"gain:480"`."""
    kind, _, text = str(rule).partition(":")
    examples = plain_text.number(text)
    if kind == GAIN and examples is not None and examples >= 0:
        return examples
    raise SpaceError(
        f"A learning-rate rule must be one of {', '.join(LEARNING_RATE_RULES)}, "
        f"or {GAIN} with a noise scale in examples",
        rule,
        f"Pass one of these names, or {GAIN}:480",
    )


WEIGHT_DECAY_RULES = ("sqrt", "constant")


def weight_decay_factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales weight decay from batch 32 to `batch_size`.

    `"sqrt"`, the square root of `batch_size / 32`, is the normalized weight decay of Loshchilov &
    Hutter 2019, appendix B.1, for equal passes over the data.

    Example:
    >>> weight_decay_factor(128, "sqrt"), weight_decay_factor(128, "constant")
    (2.0, 1.0)
    """
    return learning_rate_factor(batch_size, rule)


MOMENTUM_RULES = ("constant", "examples")


def momentum_at(batch_size: int, momentum_at_32: float, rule: str) -> float:
    """Return a momentum found at batch 32, carried to `batch_size`.

    `"examples"` forgets an example after as many further examples as at batch 32: the momentum to
    the power of `batch_size / 32` (Busbridge et al. 2023 for the moving average; Malladi et al.
    2022 to first order for the optimizer). `"constant"` forgets it after as many updates.

    Example:
    >>> momentum_at(64, 0.9, "examples"), momentum_at(64, 0.9, "constant")
    (0.81, 0.9)
    """
    if rule == "constant":
        return momentum_at_32
    return float(momentum_at_32 ** (batch_size / REFERENCE_BATCH_SIZE))


DROPOUT_RULES = ("constant", "sqrt")
MOST_DROPOUT = 0.5  # half of the units dropped, the usual rate of Srivastava et al. 2014


def dropout_factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales dropout from batch 32 to `batch_size`.

    A large batch has less gradient noise; more dropout puts noise back.

    Example:
    >>> dropout_factor(128, "sqrt"), dropout_factor(8, "sqrt"), dropout_factor(128, "constant")
    (2.0, 0.5, 1.0)
    """
    return learning_rate_factor(batch_size, rule)


def scaled_dropout(rate: float, scale: float) -> float:
    """Return a layer's rate times a factor, at most 0.5; a rate above 0.5 is never raised.

    Example:
    >>> [scaled_dropout(*each) for each in ((0.2, 2.0), (0.4, 2.0), (0.6, 2.0), (0.6, 0.5))]
    [0.4, 0.5, 0.6, 0.3]
    """
    return min(rate * scale, max(MOST_DROPOUT, rate))


# Share of the horizon: a recipe that spends more of it below its own rate is not the recipe that
# was asked for. Chosen by hand, not tuned.
MOST_WARMUP = 0.1


def updates_of_warmup(
    batch_size: int, examples: int, passes: float = 1.0, horizon_examples: float | None = None
) -> int:
    """Return the weight updates of warm-up: none up to batch 32, more passes for larger batches.

    A learning rate that was scaled up from batch 32 is too large for the first, steep updates
    (Goyal et al. 2017, who take five passes for batches of 8,192). The passes over the data grow as
    `passes * (1 - 32 / batch_size)`, from 0 at batch 32, so that 33 differs little from 32. Warm-up
    takes at most a tenth of the updates of a training within its horizon (`horizon_examples`).

    Example:
    >>> updates_of_warmup(32, 1200), updates_of_warmup(64, 1200), updates_of_warmup(256, 1200)
    (0, 9, 4)
    >>> updates_of_warmup(64, 1200, horizon_examples=1200)
    1
    """
    if batch_size <= REFERENCE_BATCH_SIZE:
        return 0
    full = round(passes * (1 - REFERENCE_BATCH_SIZE / batch_size) * examples / batch_size)
    if horizon_examples is None:
        return full
    return min(full, int(MOST_WARMUP * horizon_examples / batch_size))


# Shares of the training at which the rate is divided by ten (Goyal et al. 2017: 30, 60 and 80 of 90
# epochs).
DECAY_STEPS = (1 / 3, 2 / 3, 8 / 9)


def decay_factor(schedule: str, progress: float) -> float:
    """Return the share of the full learning rate with a share of the training behind it.

    `"cosine"` is half a cosine wave down to 0 (Loshchilov & Hutter 2017), `"steps"` a tenth more at
    each of three points (Goyal et al. 2017). A progress above 1 counts as 1.

    Example:
    >>> decay_factor("cosine", 0.0), decay_factor("cosine", 0.5), decay_factor("constant", 0.5)
    (1.0, 0.5, 1.0)
    >>> [round(decay_factor("steps", share), 4) for share in (0.3, 0.5, 0.7, 0.9)]
    [1.0, 0.1, 0.01, 0.001]
    """
    done = min(max(progress, 0.0), 1.0)
    if schedule == "cosine":
        return round(0.5 * (1 + math.cos(math.pi * done)), 12)
    if schedule == "steps":
        return 10.0 ** -sum(done >= step for step in DECAY_STEPS)
    return 1.0


# times the fewest passes that the limit allows; chosen by hand, not tuned
MOST_PASSES = 2


def micro_batch_of(batch_size: int, limit: int | None) -> int | None:
    """Return the largest divisor of a batch size within the limit; `None` if the batch is within.

    Example:
    >>> micro_batch_of(96, 40), micro_batch_of(32, 40), micro_batch_of(96, None)
    (32, None, None)
    """
    if limit is None or batch_size <= limit:
        return None
    return max(size for size in range(1, limit + 1) if batch_size % size == 0)


def check_micro_batches(batch_sizes: Sequence[int], limit: int) -> None:
    """Refuse batch sizes that need many more passes than the limit requires."""
    for size in batch_sizes:
        passes, fewest = size // (micro_batch_of(size, limit) or size), math.ceil(size / limit)
        if passes > MOST_PASSES * fewest:
            raise SpaceError(
                f"A batch above `micro_batch_size`, {limit}, must have a divisor near it",
                f"{size}, which takes {passes} passes of {size // passes} where {fewest} would do",
                f"Pass multiples of {limit}, such as {fewest * limit}, as `batch_size`",
            )


def micro_batch_by_noise(batch_size: int, limit: int | None) -> int | None:
    """Return the micro-batch of a batch that grows by its noise, in two passes or more.

    Example:
    >>> micro_batch_by_noise(64, None), micro_batch_by_noise(64, 16), micro_batch_by_noise(15, None)
    (32, 16, 5)
    """
    return micro_batch_of(batch_size, min(limit or batch_size, batch_size // 2))


def check_halves(batch_sizes: Sequence[int]) -> None:
    """Refuse batches that cannot be taken in a few passes, for a batch that grows by its noise."""
    if min(batch_sizes) == 1:
        raise SpaceError(
            "A batch that grows by the noise scale must have two examples or more",
            f"batch_size={tuple(batch_sizes)}",
            "Leave out batches of 1",
        )
    for size in batch_sizes:
        passes = size // (micro_batch_by_noise(size, None) or size)
        if passes > MOST_PASSES * math.ceil(size / (size // 2)):
            raise SpaceError(
                "A batch that grows by the noise scale must have a divisor near its half",
                f"{size}, which takes {passes} passes of {size // passes}",
                f"Pass an even batch size, such as {size + size % 2}",
            )


Drawn = Mapping[str, Any]


def recipe_fields(
    fields: Mapping[str, Any], drawn: Drawn, rule_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return fields of a recipe, scaled from batch 32 to its batch size."""
    optimizer, batch_size = drawn["optimizer"], drawn["batch_size"]
    fields = dict(fields)
    fields["dropout_scale"] *= dropout_factor(batch_size, drawn["dropout_rule"])
    if fields["ema"] is not None:
        fields["ema"] = momentum_at(batch_size, fields["ema"], drawn["momentum_rule"])
    if optimizer == COMPILED:
        return {**fields, "learning_rate": None}
    factor = learning_rate_factor(batch_size, rule_of(optimizer))
    fields["learning_rate"] = drawn[f"learning_rate_{optimizer}"] * factor
    fields["weight_decay"] *= weight_decay_factor(batch_size, drawn["weight_decay_rule"])
    fields["momentum"] = momentum_at(batch_size, fields["momentum"], drawn["momentum_rule"])
    return fields


def warmup_updates(drawn: Drawn, examples: int, horizon_examples: float | None) -> dict[str, int]:
    """Return the field of warm-up, in updates; no field for a compiled optimizer."""
    if drawn["optimizer"] == COMPILED:
        return {}
    updates = updates_of_warmup(
        drawn["batch_size"], examples, drawn["warmup_passes"], horizon_examples
    )
    return {"warmup_updates": updates}
