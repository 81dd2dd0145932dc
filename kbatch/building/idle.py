"""Idle: hyperparameters of the user's that only set up an optimizer, which kbatch replaces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import keras

from kbatch.building.model_maker import ModelMaker
from kbatch.building.signature import signature

# Two models are built to try one, so only names that tell of an optimizer are tried.
OF_OPTIMIZERS = re.compile(
    r"(^|_)(lr|learn\w*|rate|momentum|nesterov|decay|wd|beta\w*|epsilon|optim\w*|clip\w*|schedule\w*)(_|\d|$)",
    re.IGNORECASE,
)


def idle(model_maker: ModelMaker, policy: str, axes: Iterable[Any]) -> tuple[str, ...]:
    """Names of hyperparameters that change the optimizer of the model and nothing else.

    Args:
        model_maker: Makes the models.
        policy: Dtype policy to make them under.
        axes: KerasTuner's hyperparameters, kbatch's own among them.
    """
    tried = [
        axis
        for axis in axes
        if axis.name not in model_maker.reserved and OF_OPTIMIZERS.search(axis.name)
    ]
    found = []
    for axis in tried:
        others = [value for value in axis.values if value != axis.default]
        if others:
            first, second = (
                model_maker.raw(policy, model_maker.hyperparameters({axis.name: value}))
                for value in (axis.default, others[-1])
            )
            if _differ_in_the_optimizer_alone(first, second, model_maker):
                found.append(axis.name)
    return tuple(dict.fromkeys(found))


def _differ_in_the_optimizer_alone(
    first: keras.Model, second: keras.Model, model_maker: ModelMaker
) -> bool:
    if not getattr(first, "outputs", None) or not first.compiled or not second.compiled:
        return False  # a model that cannot tell its configuration may differ in what does not show
    told = [signature(model, model_maker.arguments) for model in (first, second)]
    optimizers = [said.pop("optimizer", None) for said in told]
    return told[0] == told[1] and optimizers[0] != optimizers[1]
