"""The sources of pictures: drawn by code, a folder or zip of photographs, or TFDS."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kbatch.case_study.drawn import drawn_pets
from kbatch.case_study.photographs import read_images
from kbatch.case_study.pictures import LEAST_PER_CLASS, PER_CLASS, split
from kbatch.data.examples import Examples, Progress
from kbatch.errors import DataError

DRAWN, TFDS = "drawn", "tfds"
MUST = "--data must be 'drawn', 'tfds', or a folder or zip of photographs"


def check(source: str) -> None:
    """Refuse a text that cannot be a source of pictures, before anything slow begins.

    Args:
        source: As `pictures` takes it.

    Raises:
        DataError: If it is neither "drawn" nor "tfds" nor a folder or file that exists.
    """
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
    """Return 2,000 pictures of cats and dogs, or the photographs of two classes in a folder.

    Args:
        source: `"drawn"`, `"tfds"`, or the path of a folder with two folders of photographs, such
            as `PetImages`, or of a zip of one.
        image_size: Integer, height and width in pixels.
        seed: Integer, seed of drawn pictures.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If there are no such pictures; the message says why.
    """
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
    """Return the first 1,000 images of each class, out of examples of TFDS.

    Args:
        examples: Iterable of dictionaries with `image` (uint8, height × width × 3) and `label`.
        names: Names of the classes, in the order of the labels.
        image_size: Integer, height and width in pixels.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If there are fewer.
    """
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
