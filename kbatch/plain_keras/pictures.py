"""The pictures of the case study, read from a folder and split as there."""

import re
from pathlib import Path

import numpy as np
from PIL import Image


def photographs(folder, image_size, most):
    """Return the first photographs of each class folder that can be read, in their order."""
    by_class = {}
    for class_folder in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        pixels = (decoded(file, image_size) for file in sorted(class_folder.iterdir(), key=place))
        found = [image for image in pixels if image is not None][:most]
        by_class[class_folder.name] = np.array(found)
    return by_class


def place(file):
    """Return the key of the order: files with numbers by their number, others after them."""
    return (int(file.stem) if re.fullmatch(r"\d+", file.stem) else 1 << 60, file.name)


def decoded(file, image_size):
    """Return a photograph as pixels from 0 to 255; None for a file that is none."""
    try:
        with Image.open(file) as image:
            small = image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR)
            return np.asarray(small, "uint8")
    except (OSError, ValueError, SyntaxError):
        return None


def split(by_class):
    """Return three fifths of each class to train on, and one to validate on, each as (x, y).

    The last fifth is the test set, which nobody chose by.
    """
    fifth = min(map(len, by_class.values())) // 5

    def part(first, last):
        images = np.concatenate([images[first:last] for images in by_class.values()])
        return images, np.repeat(np.arange(len(by_class), dtype="int32"), last - first)

    return part(0, 3 * fifth), part(3 * fifth, 4 * fifth)
