"""The agreement of a space's arguments with one another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kbatch.batch_growth import CONSTANT, BatchGrowth, check_companions, measures_noise
from kbatch.dtype_policy import check_policies
from kbatch.errors import SpaceError
from kbatch.recipe_fields import COMPILED
from kbatch.rules import batch_schedule, scaling
from kbatch.rules.scaling import DEFAULT_LEARNING_RATE_RULES
from kbatch.training_method import PLAIN


def check(space: Any, rules: Mapping[str, str], of_optimizer: Mapping[str, Any]) -> None:
    """Refuse values that a recipe could not have together.

    Args:
        space: `Space`.
        rules: The learning-rate rule of each optimizer of the space that has one.
        of_optimizer: The axes that a compiled optimizer decides, with their defaults.

    Raises:
        SpaceError: If a search might draw them together, or if an axis would change nothing.
    """
    _check_compiled(space, of_optimizer)
    check_policies(SpaceError, space.policy or (), space.optimizer, space.training)
    schedules = space.batch_schedule
    check_companions(SpaceError, schedules, space.jit_compile or (), space.training)
    if any(map(measures_noise, schedules)):
        scaling.check_halves(space.batch_size)
    own = {name: rule for name, rule in rules.items() if rule != DEFAULT_LEARNING_RATE_RULES[name]}
    if own and tuple(schedules) != (CONSTANT,):
        raise SpaceError(
            "The learning rate of a growing batch must follow the usual rule",
            f"learning_rate_rule={own} and batch_schedule={schedules}",
            "Leave one of them out",
        )


def _check_compiled(space: Any, of_optimizer: Mapping[str, Any]) -> None:
    """Refuse settings of an optimizer in a space that leaves all of them to the model's own."""
    given = {name: getattr(space, name) for name in of_optimizer}
    idle = [f"{name}={value}" for name, value in given.items() if value != of_optimizer[name]]
    if idle and set(space.optimizer) == {COMPILED}:
        raise SpaceError(
            'With optimizer="compiled" alone its settings must be the model\'s own',
            ", ".join(idle),
            "Leave them out, or name an optimizer too, such as sgd",
        )


def smallest_step(space: Any, batch_sizes: Sequence[int]) -> int:
    """Return the fewest examples of a train step among the recipes of a space.

    Args:
        space: `Space`.
        batch_sizes: Sequence of integers, those of its batch sizes that fit.
    """
    steps = []
    for size, schedule in itertools.product(batch_sizes, space.batch_schedule):
        # other methods take a batch in one step
        of_pass = space.micro_batch(size, schedule) if PLAIN in space.training else None
        factor = (BatchGrowth.parse(schedule) or BatchGrowth()).factor
        steps.append(batch_schedule.first_pass(size, factor, size // (of_pass or size)))
    return min(steps, default=2)
