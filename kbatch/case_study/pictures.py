"""Pictures of cats and dogs: drawn, photographed, or from TFDS."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from kbatch.data.examples import Examples, Progress
from kbatch.data.pictures import Entry, decode, natural, opened
from kbatch.errors import DataError

PER_CLASS = 1000  # of the case study
LEAST_PER_CLASS = 100  # a fifth is validated on: fewer than 20 cannot tell two recipes apart
# To train, to validate and to test: of each class in the case study 600, 200 and 200.
FIFTHS = (3, 1, 1)


def split(name: str, by_class: dict[str, np.ndarray], skipped: tuple[str, ...] = ()) -> Examples:
    """Cut each class's images into three fifths to train, one to validate and one to test.

    Args:
        name: String, the data in words.
        by_class: For each class, the same number of uint8 images of shape `(n, size, size, 3)`.
        skipped: Names of the files that could not be read.
    """
    fifth = min(map(len, by_class.values())) // sum(FIFTHS)

    def part(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        images = np.concatenate([images[first:last] for images in by_class.values()])
        labels = np.repeat(np.arange(len(by_class), dtype="int32"), last - first)
        return images, labels

    cuts = (0, *itertools.accumulate(fifth * share for share in FIFTHS))
    train, validation, test = (part(first, last) for first, last in itertools.pairwise(cuts))
    return Examples(name, train, validation, test, tuple(by_class), skipped)


CLASS_AND_NAME = 2  # parts of the path of a file that count


def read_images(
    path: str | Path,
    image_size: int,
    per_class: int,
    classes: int = 2,
    on_progress: Callable[[int], None] | None = None,
    least: int | None = None,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the first readable images of each class, in the order of their numbers.

    Returns a tuple. First a dictionary from class to uint8 images of shape `(n, image_size,
    image_size, 3)`, where `n` is `per_class`, or the size of the smallest class. Then the names of
    the files that were reached and could not be read.

    Example:
    ```python
    images, skipped = read_images("PetImages", image_size=64, per_class=1000)
    ```
    """
    with _opened(Path(path)) as entries:
        by_class: dict[str, list[Entry]] = {}
        for entry in entries:
            by_class.setdefault(entry.label, []).append(entry)
        if len(by_class) != classes:
            raise DataError(
                f"{path} must hold {classes} folders of images, one per class",
                f"{sorted(by_class) or 'no images'}",
                "Pass a folder that holds one folder of photographs per class",
            )
        found: dict[str, np.ndarray] = {}
        skipped: list[str] = []
        for label in sorted(by_class):
            images, unreadable = _read_class(
                sorted(by_class[label], key=natural),
                image_size,
                per_class,
                len(found) * per_class,
                on_progress,
            )
            found[label] = images
            skipped += unreadable
    least = per_class if least is None else least
    few = {label: len(images) for label, images in found.items() if len(images) < least}
    if few:
        received = ", ".join(f"{count} of {label}" for label, count in few.items())
        if skipped:
            received += f"; {len(skipped)} files could not be read"
        raise DataError(
            f"{path} must hold {least} readable images of each class",
            received,
            "Add images, or pass another folder",
        )
    smallest = min(map(len, found.values()))
    return {label: images[:smallest] for label, images in found.items()}, tuple(skipped)


def _read_class(
    entries: list[Entry],
    image_size: int,
    per_class: int,
    before: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[np.ndarray, list[str]]:
    """Read the images of a class, and name the files that cannot be read.

    Of a class with fewer than twice the files, all are tried, so that all bad ones are named.
    """
    images: list[np.ndarray] = []
    skipped = []
    for entry in entries:
        if len(images) == per_class and len(entries) > 2 * per_class:
            break
        try:
            pixels = decode(entry.read(), image_size)
            if len(images) < per_class:
                images.append(pixels)
        except Exception as error:  # decoders raise errors of any kind on broken bytes
            skipped.append(entry.unreadable(error))
        if on_progress:
            on_progress(before + len(images))
    return np.array(images, "uint8").reshape(-1, image_size, image_size, 3), skipped


@contextmanager
def _opened(path: Path) -> Iterator[list[Entry]]:
    """The image files of a folder or of a zip, as class and name."""
    root = path / "PetImages" if (path / "PetImages").is_dir() else path
    with opened(root, CLASS_AND_NAME) as entries:
        yield [
            dataclasses.replace(entry, parts=entry.parts[-CLASS_AND_NAME:])
            for entry in entries
            if len(entry.parts) >= CLASS_AND_NAME
        ]


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


DRAWN, TFDS = "drawn", "tfds"
MUST = "--data must be 'drawn', 'tfds', or a folder or zip of photographs"


def check(source: str) -> None:
    """Refuse a text that cannot be a source of pictures, before anything slow begins."""
    if source in (DRAWN, TFDS):
        return
    path = Path(source)
    try:
        there = path.is_dir() or path.is_file()
        odd = not there and path.exists()
    except OSError as error:  # such as for a name that is too long
        raise DataError(MUST, f"{error.strerror}", "Check the path") from error
    if odd:
        raise DataError(MUST, f"{source}, a pipe or a device", "Check the path")
    if not there:
        raise DataError(f"{MUST} that exists", source, "Check the path")


def pictures(
    source: str, image_size: int, seed: int = 0, on_progress: Progress | None = None
) -> Examples:
    """Return 2,000 pictures of cats and dogs, or the photographs of two classes in a folder."""
    check(source)
    try:
        if source == DRAWN:
            return split(
                "2,000 cats and dogs drawn by code (no photographs)",
                drawn_pets(PER_CLASS, image_size, seed, on_progress),
            )
        if source == TFDS:
            return split(
                "2,000 photographs of TFDS cats_vs_dogs", from_tfds(image_size, on_progress)
            )
        images, skipped = read_images(
            source, image_size, PER_CLASS, on_progress=on_progress, least=LEAST_PER_CLASS
        )
    except MemoryError as error:
        raise DataError(
            "The pictures must fit into memory", f"--image-size {image_size}", "Pass a smaller one"
        ) from error
    except OSError as error:
        raise DataError(
            "--data must be a folder that can be read", f"{error}", "Check the path"
        ) from error
    count = sum(map(len, images.values()))
    return split(f"{count:,} photographs of {Path(source).name}", images, skipped)


def from_tfds(image_size: int, on_progress: Progress | None = None) -> dict[str, np.ndarray]:
    """Return the first 1,000 cats and dogs of TFDS `cats_vs_dogs`, which is downloaded if missing.

    Args:
        image_size: Integer, height and width in pixels.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If TFDS is not installed or cannot prepare the data.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            "--data tfds needs tensorflow-datasets",
            "it is not installed",
            "pip install 'keras-kbatch[tfds]'",
        ) from error
    try:
        dataset, info = tfds.load(
            "cats_vs_dogs", split="train", shuffle_files=False, with_info=True
        )
    except Exception as error:  # TFDS raises the errors of its downloader and its file systems
        raise DataError(
            "TFDS must be able to prepare cats_vs_dogs",
            f"{type(error).__name__}: {str(error)[:300]}",
            "Check the network, or pass a folder",
        ) from error
    names = info.features["label"].names
    return collect(tfds.as_numpy(dataset), names, image_size, on_progress)


def collect(
    examples: object, names: list[str], image_size: int, on_progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """Return the first 1,000 images of each class, out of examples of TFDS."""
    from PIL import Image

    by_class: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for example in examples:  # type: ignore[attr-defined]
        images = by_class[names[int(example["label"])]]
        if len(images) < PER_CLASS:
            picture = Image.fromarray(example["image"]).convert("RGB")
            small = picture.resize((image_size, image_size), Image.Resampling.BILINEAR)
            images.append(np.asarray(small, "uint8"))
            if on_progress:
                on_progress(sum(map(len, by_class.values())))
        if all(len(images) == PER_CLASS for images in by_class.values()):
            return {name: np.array(images) for name, images in by_class.items()}
    counts = ", ".join(f"{len(images)} of {name}" for name, images in by_class.items())
    raise DataError(
        f"TFDS must hold {PER_CLASS} images of each class", counts, "Prepare the whole data set"
    )
