"""Setting: the options of a study, at full size or quick."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch.errors import SearchError

FULL, QUICK = 10**9, 120  # examples of each class to train on
LEAST_IMAGE_SIZE = 8  # pixels, of the case study's network
BOUNDS: dict[str, tuple[int, int]] = {
    "image_size": (LEAST_IMAGE_SIZE, 1024),
    "seeds": (1, 100),
    "epochs": (1, 10_000),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a study share, besides the data.

    Attributes:
        image_size: Integer, height and width in pixels.
        epochs: Integer, passes over the data.
        seeds: Integer, seeds of every cell.
        memory_limit: Integer, bytes that the device may use; `None` for all that it has.
        quick: Boolean, whether the study is cut to a few minutes: fewer and smaller pictures, fewer
            sizes and epochs. It shows that the study works here; its numbers claim nothing.
    """

    image_size: int
    epochs: int
    seeds: int
    memory_limit: int | None = None
    quick: bool = False

    @property
    def per_class(self) -> int:
        """Integer, the most examples of each class to train on."""
        return QUICK if self.quick else FULL


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks of a study; `None` for what the study's own setting says.

    Attributes:
        image_size, epochs, seeds, memory_limit: See `Setting`.
    """

    image_size: int | None = None
    epochs: int | None = None
    seeds: int | None = None
    memory_limit: int | None = None

    def applied(
        self,
        setting: Setting,
        takes: Sequence[str],
        least_image_size: int = LEAST_IMAGE_SIZE,
    ) -> Setting:
        """Return the setting with these wishes.

        Args:
            setting: The study's own setting.
            takes: The names of the wishes that change something in this study.
            least_image_size: Integer, pixels below which a network of this study has no room.

        Raises:
            SearchError: If a number is out of range, or would change nothing.
        """
        wished = {name: value for name, value in vars(self).items() if value is not None}
        bounds = {**BOUNDS, "image_size": (least_image_size, BOUNDS["image_size"][1])}
        for name, (least, most) in bounds.items():
            if not least <= wished.get(name, least) <= most:
                raise SearchError(
                    f"{_option(name)} must be at least {least:,} and at most {most:,}",
                    wished[name],
                    "Pass a number between these",
                )
        for name in wished.keys() - set(takes):
            raise SearchError(
                f"This study must be given only {', '.join(map(_option, takes))}",
                _option(name),
                "Leave it out: it would change nothing here",
            )
        return dataclasses.replace(setting, **wished)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
