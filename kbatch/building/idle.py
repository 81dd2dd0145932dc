"""Idle hyperparameters: they only set up the user's optimizer, which kbatch replaces."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

import keras

from kbatch.building.model_maker import ModelMaker
from kbatch.building.signature import signature

# Testing one hyperparameter takes two models, so only names that suggest an optimizer are tested.
OF_OPTIMIZERS = re.compile(
    r"(^|_)(lr|learn\w*|rate|momentum|nesterov|decay|wd|beta\w*|epsilon|optim\w*|clip\w*"
    r"|schedule\w*)(_|\d|$)",
    re.IGNORECASE,
)


def idle(model_maker: ModelMaker, policy: str, axes: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of hyperparameters that change only the optimizer of the model.

    Args:
        model_maker: `ModelMaker` that builds the models to compare.
        policy: String, dtype policy to build under.
        axes: Iterable of KerasTuner's hyperparameters, including kbatch's own.
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


def warn(model_maker: ModelMaker, policy: str, axes: Iterable[Any]) -> None:
    """Warn of the idle hyperparameters; see `idle`."""
    names = idle(model_maker, policy, axes)
    if names:
        warnings.warn(sentence(names), stacklevel=3)


def sentence(names: Iterable[str]) -> str:
    """Return a warning that names idle hyperparameters."""
    return (
        f"The hyperparameters {', '.join(names)} of `build` have no effect: kbatch replaces the "
        "optimizer and searches its rate as learning_rate_sgd and learning_rate_adam. Take them "
        'out of `build`, or search Space(optimizer="compiled").'
    )


def _differ_in_the_optimizer_alone(
    first: keras.Model, second: keras.Model, model_maker: ModelMaker
) -> bool:
    if not getattr(first, "outputs", None) or not first.compiled or not second.compiled:
        return False  # a model without a configuration may differ in ways that do not show
    told = [signature(model, model_maker.arguments) for model in (first, second)]
    optimizers = [said.pop("optimizer", None) for said in told]
    return told[0] == told[1] and optimizers[0] != optimizers[1]
