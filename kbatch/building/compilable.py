"""Spaces whose default searches XLA, narrowed to what Keras does with the user's model."""

from __future__ import annotations

import dataclasses

from kbatch.building.model_maker import ModelMaker
from kbatch.space import Space


def compilable(space: Space, model_maker: ModelMaker) -> Space:
    """Return the space, without XLA where nobody asked for it and Keras would not compile by it.

    That is so for a model with a layer that XLA cannot compile, for one that its author compiled
    with `jit_compile=False`, and where operations are made deterministic. A model is made only
    where the space would search XLA by default, which is on a GPU.

    Args:
        space: `Space`.
        model_maker: Makes the user's model.
    """
    if space.jit_compile is not None or True not in space.compilations:
        return space
    if model_maker.raw(space.policies[0]).jit_compile:
        return space
    return dataclasses.replace(space, jit_compile=False)
