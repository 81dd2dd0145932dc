"""The agreement of a space's arguments with one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbatch.batch_growth import CONSTANT, check_companions, measures_noise
from kbatch.dtype_policy import check_policies
from kbatch.errors import SpaceError
from kbatch.rules import micro_batch
from kbatch.rules.learning_rate import DEFAULT_RULES


def check(space: Any, rules: Mapping[str, str]) -> None:
    """Refuse values that a recipe could not have together.

    Args:
        space: `Space`.
        rules: The learning-rate rule of each optimizer of the space that has one.

    Raises:
        SpaceError: If a search might draw them together.
    """
    check_policies(SpaceError, space.policy or (), space.optimizer, space.training)
    schedules = space.batch_schedule
    check_companions(SpaceError, schedules, space.jit_compile or (), space.training)
    if any(map(measures_noise, schedules)):
        micro_batch.check_halves(space.batch_size)
    own = {name: rule for name, rule in rules.items() if rule != DEFAULT_RULES[name]}
    if own and tuple(schedules) != (CONSTANT,):
        raise SpaceError(
            "The learning rate of a growing batch must follow the usual rule",
            f"learning_rate_rule={own} and batch_schedule={schedules}",
            "Leave one of them out",
        )
