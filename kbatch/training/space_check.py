"""The check of a search's space, before anything is made of it."""

from __future__ import annotations

from typing import Any

from kbatch.data import augmentation
from kbatch.errors import SpaceError
from kbatch.space import Space


def check_space(space: Any) -> None:
    """Refuse anything but a `Space` whose augmentations are registered.

    Raises:
        SpaceError: If it is anything else.
    """
    if not isinstance(space, Space):
        raise SpaceError(
            "`space` must be a Space", space, "Pass kbatch.Space(batch_size=(32, 64)), say"
        )
    unknown = [name for name in space.augmentation if name not in augmentation.augmentation_names()]
    if unknown:
        raise SpaceError(
            f"`augmentation` must be among {', '.join(augmentation.augmentation_names())}",
            ", ".join(unknown),
            "Register it first with kbatch.register_augmentation",
        )
