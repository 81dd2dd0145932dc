"""Spaces whose default searches XLA, narrowed to what XLA can compile."""

from __future__ import annotations

import dataclasses

from kbatch.building.compiled import not_compiled_by_xla
from kbatch.building.model_maker import ModelMaker
from kbatch.space import Space


def compilable(space: Space, model_maker: ModelMaker) -> Space:
    """Return the space, without XLA where nobody asked for it and it cannot compile the model.

    A model is made only where the space would search XLA by default, which is on a GPU.

    Args:
        space: `Space`.
        model_maker: Makes the user's model.
    """
    if space.jit_compile is not None or True not in space.compilations:
        return space
    if not not_compiled_by_xla(model_maker.raw(space.policies[0])):
        return space
    return dataclasses.replace(space, jit_compile=False)
