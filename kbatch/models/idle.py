"""Idle: choices of a space that make no difference for a model, or that XLA cannot compile."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from kbatch.models.maker import ModelMaker, signature
from kbatch.space import Space


def compilable(space: Space, model_maker: ModelMaker) -> Space:
    """Return the space, without XLA where nobody asked for it and Keras would not compile by it.

    That is so for a model with a layer that XLA cannot compile, for one that its author compiled
    with `jit_compile=False`, and where operations are made deterministic. A model is made only
    where the space would search XLA by default, which is on a GPU.
    """
    if space.jit_compile is not None or True not in space.compilations:
        return space
    if model_maker.raw(space.policies[0]).jit_compile:
        return space
    return dataclasses.replace(space, jit_compile=False)


# Testing one hyperparameter takes two models, so only names that suggest an optimizer are tested.
OPTIMIZER_STATE = re.compile(
    r"(^|_)(lr|learn\w*|rate|momentum|nesterov|decay|wd|beta\w*|epsilon|optim\w*|clip\w*"
    r"|schedule\w*)(_|\d|$)",
    re.IGNORECASE,
)


def idle(model_maker: ModelMaker, policy: str, axes: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of hyperparameters that change only the optimizer of the model."""
    tried = [
        axis
        for axis in axes
        if axis.name not in model_maker.reserved and OPTIMIZER_STATE.search(axis.name)
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


def idle_sentence(names: Iterable[str], today: Mapping[str, Any]) -> str:
    """Return a warning that names idle hyperparameters."""
    names = tuple(names)
    own = ", ".join(f"{name}={today[name]}" for name in names if name in today)
    baseline = f" Only the baseline's own optimizer has them: {own}." if own else ""
    return (
        f"The hyperparameters {', '.join(names)} of `build` have no effect in trials: kbatch "
        "replaces the optimizer there and searches its rate as learning_rate_sgd and "
        f"learning_rate_adam.{baseline} Take them out of `build`, or search "
        'Space(optimizer="compiled").'
    )


def _differ_in_the_optimizer_alone(
    first: keras.Model, second: keras.Model, model_maker: ModelMaker
) -> bool:
    if not getattr(first, "outputs", None) or not first.compiled or not second.compiled:
        return False  # a model without a configuration may differ in ways that do not show
    told = [signature(model, model_maker.arguments) for model in (first, second)]
    optimizers = [said.pop("optimizer", None) for said in told]
    return told[0] == told[1] and optimizers[0] != optimizers[1]
