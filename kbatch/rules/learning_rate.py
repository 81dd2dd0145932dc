"""Learning-rate rules, which scale a rate found at batch 32 to another batch size."""

from __future__ import annotations

import math

from kbatch import number_text
from kbatch.errors import SpaceError
from kbatch.rules import noise_scale

REFERENCE_BATCH_SIZE = 32  # the default batch size of Keras' `fit`
RULES = ("linear", "sqrt", "constant")
GAIN = "gain"  # with the noise scale: "gain:480"
DEFAULT_RULES = {
    "sgd": "linear",
    "adam": "sqrt",
    "adamw": "sqrt",
    "lars": "sqrt",
    "lamb": "sqrt",
}


def factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales a learning rate from batch 32 to `batch_size`.

    Args:
        batch_size: Integer, examples per weight update.
        rule: `"linear"` (`batch_size / 32`; Goyal et al. 2017, for SGD), `"sqrt"` (its square root;
            Hoffer et al. 2017, Malladi et al. 2022 for Adam, You et al. 2020 for LAMB),
            `"constant"`, or `"gain:480"`: AdaScale's gain at a gradient noise scale of 480
            examples, as `kbatch.noise_scale` measures it (Johnson et al. 2020, for SGD). It lies
            between `"constant"` (no noise) and `"linear"` (noise only).

    Raises:
        SpaceError: If the rule is unknown.

    Example:
    >>> factor(128, "linear"), factor(128, "sqrt"), factor(128, "constant")
    (4.0, 2.0, 1.0)
    >>> factor(128, "gain:128"), factor(32, "gain:128")
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
    examples = number_text.number(text)
    if kind == GAIN and examples is not None and examples >= 0:
        return examples
    raise SpaceError(
        f"A learning-rate rule must be one of {', '.join(RULES)}, "
        f"or {GAIN} with a noise scale in examples",
        rule,
        f"Pass one of these names, or {GAIN}:480",
    )
