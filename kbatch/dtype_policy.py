"""The dtype policies that a recipe may name, and what each of them excludes."""

from __future__ import annotations

from collections.abc import Iterable

from kbatch.errors import KbatchError

FLOAT16, FLOAT8 = "float16", "float8"
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", FLOAT16, FLOAT8)
# What the layers that have no float8 matrix multiplication compute in. Its range is that of
# float32, so the loss needs no scaling.
FLOAT8_BASE = "mixed_bfloat16"
# Optimizers that divide by the root of squared gradients, which are 0 in float16 below 2.4e-4.
ADAPTIVE = ("adam", "adamw", "lamb")


def policy_of_keras(policy: str) -> str:
    """Return the global dtype policy of Keras under which a model is built for a policy.

    Example:
    >>> policy_of_keras("float8"), policy_of_keras("float16")
    ('mixed_bfloat16', 'float16')
    """
    return FLOAT8_BASE if policy == FLOAT8 else policy


def check_policies(
    error: type[KbatchError],
    policies: Iterable[str],
    optimizers: Iterable[str],
    methods: Iterable[str],
) -> None:
    """Refuse policies that do not go with an optimizer or a training method beside them.

    Args:
        error: Class of the error: of a recipe, or of a space.
        policies: Policies of the recipe, or of the space.
        optimizers: Names of optimizers.
        methods: Values of `training`.

    Raises:
        KbatchError: Of the class `error`.
    """
    policies = tuple(policies)
    adaptive = [name for name in optimizers if name in ADAPTIVE]
    if FLOAT16 in policies and adaptive:
        raise error(
            'policy="float16" must go without the Adam family: squared gradients, by whose root '
            "it divides, are 0 in float16 below 2.4e-4",
            f"optimizer {', '.join(adaptive)}",
            'Take sgd or lars, or policy="mixed_float16"; a search over both needs two spaces',
        )
    several = [method for method in methods if method != "plain"]
    if FLOAT8 in policies and several:
        raise error(
            'policy="float8" must go with plain training: Keras hands the scales of float8 over '
            "as gradients, once per update",
            f"training {', '.join(several)}",
            f'Take training="plain", or policy={FLOAT8_BASE!r}',
        )
