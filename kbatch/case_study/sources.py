"""Sources: where the case study's pictures come from: drawn by code, a folder or zip of photographs, or TFDS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kbatch.data.drawn import drawn_pets
from kbatch.data.images import read_images
from kbatch.data.pictures import PER_CLASS, Pictures, split
from kbatch.errors import DataError

Progress = Callable[[int], None]


def pictures(source: str, image_size: int, seed: int = 0, on_progress: Progress | None = None) -> Pictures:
    """The case study's 2,000 pictures.

    Args:
        source: `"drawn"`, `"tfds"`, or the path of a `PetImages` folder or of the official zip.
        image_size: Integer, height and width in pixels.
        seed: Integer, which pictures are drawn.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If the pictures cannot be had; the message says why.
    """
    if source == "drawn":
        return split("2,000 cats and dogs drawn by code (no photographs)", drawn_pets(PER_CLASS, image_size, seed, on_progress))
    if source == "tfds":
        return split("2,000 photographs of TFDS cats_vs_dogs", from_tfds(image_size, on_progress))
    if not Path(source).exists():
        raise DataError("--data must be 'drawn', 'tfds', or a folder or zip of photographs that exists", source, "Check the path")
    images, skipped = read_images(source, image_size, PER_CLASS, on_progress=on_progress)
    return split(f"2,000 photographs of {Path(source).name}", images, skipped)


def from_tfds(image_size: int, on_progress: Progress | None = None) -> dict[str, np.ndarray]:
    """The first 1,000 cats and dogs of TFDS `cats_vs_dogs`, in its own order; downloads it if it is not there.

    Args:
        image_size: Integer, height and width in pixels.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If TFDS is not installed or cannot prepare the data.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError("--data tfds needs tensorflow-datasets", "it is not installed", "pip install 'kbatch[tfds]'") from error
    try:
        dataset, info = tfds.load("cats_vs_dogs", split="train", shuffle_files=False, with_info=True)
    except Exception as error:  # TFDS raises whatever its downloader and its file systems raise
        raise DataError(
            "TFDS must be able to prepare cats_vs_dogs", f"{type(error).__name__}: {str(error)[:300]}", "Check the network, or pass a folder"
        ) from error
    names = info.features["label"].names
    return collect(tfds.as_numpy(dataset), names, image_size, on_progress)


def collect(examples: object, names: list[str], image_size: int, on_progress: Progress | None = None) -> dict[str, np.ndarray]:
    """The first 1,000 images of each class out of TFDS-like examples.

    Args:
        examples: Iterable of dictionaries with `image` (uint8, height × width × 3) and `label`.
        names: Names of the classes, in the order of the labels.
        image_size: Integer, height and width in pixels.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If there are fewer.
    """
    from PIL import Image

    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for example in examples:  # type: ignore[attr-defined]
        images = found[names[int(example["label"])]]
        if len(images) < PER_CLASS:
            picture = Image.fromarray(example["image"]).convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR)
            images.append(np.asarray(picture, "uint8"))
            if on_progress:
                on_progress(sum(map(len, found.values())))
        if all(len(images) == PER_CLASS for images in found.values()):
            return {name: np.array(images) for name, images in found.items()}
    counts = ", ".join(f"{len(images)} of {name}" for name, images in found.items())
    raise DataError(f"TFDS must hold {PER_CLASS} images of each class", counts, "Prepare the whole data set")
