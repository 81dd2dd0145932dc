"""Cats and dogs drawn by code: pictures without a download."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

CLASSES = ("cat", "dog")
FURS = (
    (60, 50, 45),
    (120, 85, 55),
    (190, 140, 90),
    (225, 200, 165),
    (150, 150, 150),
    (95, 95, 105),
    (235, 230, 225),
    (175, 100, 50),
)
SCALE = 2  # pictures are drawn at twice the size and shrunk, which softens the edges


def drawn_pets(
    examples: int,
    image_size: int = 64,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Draw cats and dogs.

    Pose, colours, size, background, occlusion, light and noise vary. Only ears, snout and eyes tell
    a cat from a dog.

    Args:
        examples: Integer, images of each class.
        image_size: Integer, height and width in pixels. Defaults to `64`.
        seed: Integer; the same seed draws the same images. Defaults to `0`.
        on_progress: Function called with the number of images drawn so far. Optional.

    Returns:
        For `"cat"` and `"dog"`, uint8 images of shape `(examples, image_size, image_size, 3)`.

    Example:
    >>> pets = drawn_pets(examples=2, image_size=32)
    >>> pets["cat"].shape
    (2, 32, 32, 3)
    """
    images = {name: np.empty((examples, image_size, image_size, 3), "uint8") for name in CLASSES}
    for label, name in enumerate(CLASSES):
        for index in range(examples):
            rng = np.random.default_rng((seed, label, index))
            images[name][index] = _picture(name, image_size, rng)
            if on_progress:
                on_progress(label * examples + index + 1)
    return images


def _picture(name: str, image_size: int, rng: np.random.Generator) -> np.ndarray:
    """A head on a background, partly covered, blurred, with changed contrast and noise."""
    side = SCALE * image_size
    canvas = _background(side, rng)
    head = _head(name, side, rng)
    shift = tuple(int(v) for v in rng.uniform(-0.09, 0.09, 2) * side)
    canvas.paste(head, shift, head)
    _clutter(ImageDraw.Draw(canvas), side, rng, pieces=int(rng.integers(0, 3)), largest=0.2)
    canvas = canvas.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0, 0.012) * side)))
    pixels = np.asarray(canvas.resize((image_size, image_size), Image.Resampling.BOX), "float32")
    contrast, light = rng.uniform(0.6, 1.1), rng.uniform(5, 45)
    pixels = (
        (pixels - 128) * contrast + 128 + light + rng.normal(0, rng.uniform(35, 60), pixels.shape)
    )
    return np.asarray(np.clip(pixels, 0, 255), "uint8")


def _background(side: int, rng: np.random.Generator) -> Image.Image:
    """A gradient between two colours, with shapes on it."""
    ramp = np.linspace(0, 1, side)[:, None, None]
    first, second = rng.integers(20, 236, (2, 3))
    gradient = np.broadcast_to(first * (1 - ramp) + second * ramp, (side, side, 3))
    canvas = Image.fromarray(np.asarray(gradient, "uint8")).rotate(
        float(rng.choice([0, 90, 180, 270]))
    )
    _clutter(ImageDraw.Draw(canvas), side, rng, pieces=int(rng.integers(2, 7)), largest=0.4)
    return canvas


def _clutter(
    draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator, pieces: int, largest: float
) -> None:
    """Draw shapes of any colour, triangles and ellipses among them.

    They keep a single shape from betraying the class.
    """
    for _ in range(pieces):
        x, y = rng.uniform(-0.1, 1.0, 2) * side
        width, height = rng.uniform(0.05, largest, 2) * side
        colour = (
            FURS[rng.integers(len(FURS))]
            if rng.random() < 0.5
            else tuple(int(v) for v in rng.integers(0, 256, 3))
        )
        kind = rng.integers(4)
        if kind == 0:
            draw.ellipse((x, y, x + width, y + height), fill=colour)
        elif kind == 1:
            draw.polygon(
                [(x, y + height), (x + width / 2, y), (x + width, y + height)], fill=colour
            )
        elif kind == 2:
            draw.rectangle((x, y, x + width, y + height), fill=colour)
        else:
            draw.line((x, y, x + 2 * width, y + height), fill=colour, width=max(side // 40, 1))


def _head(name: str, side: int, rng: np.random.Generator) -> Image.Image:
    """A head on a transparent canvas, turned and sized at random."""
    layer = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    fur = np.clip(np.array(FURS[rng.integers(len(FURS))]) + rng.integers(-25, 26, 3), 0, 255)
    dark = tuple(int(v) for v in fur * rng.uniform(0.5, 0.85))
    coat = tuple(int(v) for v in fur)
    radius = float(rng.uniform(0.24, 0.36)) * side
    wide = float(rng.uniform(0.85, 1.2))
    centre = side / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return centre + x * radius * wide, centre + y * radius

    def oval(x: float, y: float, width: float, height: float, fill: tuple[int, ...]) -> None:
        draw.ellipse((*at(x - width, y - height), *at(x + width, y + height)), fill=fill)

    ears, face = {"cat": (_cat_ears, _cat_face), "dog": (_dog_ears, _dog_face)}[name]
    ears(draw, at, oval, coat, dark, rng)
    oval(0, 0, 1, 1, coat)
    if rng.random() < 0.4:  # a patch
        (x, y), (width, height) = rng.uniform(-0.5, 0.5, 2), rng.uniform(0.2, 0.45, 2)
        oval(x, y, width, height, dark)
    face(draw, at, oval, dark, rng)
    return layer.rotate(float(rng.uniform(-15, 15)), resample=Image.Resampling.BILINEAR)


def _cat_ears(draw, at, oval, coat, dark, rng) -> None:  # type: ignore[no-untyped-def]
    """Draw two upright triangles."""
    tall, lean = rng.uniform(1.25, 1.7), rng.uniform(-0.15, 0.25)
    for sign in (-1, 1):
        draw.polygon(
            [at(sign * 0.95, -0.2), at(sign * (0.75 + lean), -tall), at(sign * 0.15, -0.85)],
            fill=dark if rng.random() < 0.5 else coat,
        )


def _dog_ears(draw, at, oval, coat, dark, rng) -> None:  # type: ignore[no-untyped-def]
    """Draw two ears that hang, or for every fourth dog two rounded ears that stand."""
    if rng.random() < 0.25:
        for sign in (-1, 1):
            oval(sign * 0.65, -0.95, 0.28, 0.5, dark)
        return
    drop = rng.uniform(0.0, 0.45)
    for sign in (-1, 1):
        oval(
            sign * rng.uniform(0.9, 1.1),
            drop,
            rng.uniform(0.25, 0.4),
            rng.uniform(0.55, 0.85),
            dark,
        )


def _cat_face(draw, at, oval, dark, rng) -> None:  # type: ignore[no-untyped-def]
    """Draw wide eyes with slits, a small nose and whiskers."""
    iris = ((150, 190, 70), (210, 180, 60), (110, 160, 200))[rng.integers(3)]
    for sign in (-1, 1):
        oval(sign * 0.42, -0.15, 0.22, 0.17, iris)
        oval(sign * 0.42, -0.15, rng.uniform(0.04, 0.12), 0.16, (15, 15, 15))
        for tilt in (-0.1, 0.1):
            draw.line(
                (*at(sign * 0.2, 0.4), *at(sign * 1.2, 0.4 + 2 * tilt)),
                fill=(230, 230, 230),
                width=1,
            )
    draw.polygon([at(-0.12, 0.25), at(0.12, 0.25), at(0, 0.4)], fill=(200, 120, 120))


def _dog_face(draw, at, oval, dark, rng) -> None:  # type: ignore[no-untyped-def]
    """Draw round eyes, a long snout with a large nose, and sometimes a tongue."""
    for sign in (-1, 1):
        oval(sign * 0.38, -0.25, 0.15, 0.15, (70, 45, 25))
        oval(sign * 0.38, -0.25, 0.08, 0.08, (10, 10, 10))
    drop = rng.uniform(0.4, 0.6)
    oval(0, drop, rng.uniform(0.36, 0.5), 0.45, tuple(min(v + 30, 255) for v in dark))
    if rng.random() < 0.35:
        oval(0, drop + 0.42, 0.14, 0.25, (205, 90, 100))
    oval(0, drop - 0.2, 0.2, 0.14, (25, 22, 22))
