"""Pictures: those of the case study as a script reads them; they are copied, not imported."""

import re
import zipfile
from pathlib import Path

import numpy as np

from kbatch.data.pictures import decode


def photographs(source, image_size, most):
    """Return the first photographs of each class of a folder or a zip, in their order."""
    by_class = {}
    for folder in class_folders(zipfile.Path(source) if Path(source).is_file() else Path(source)):
        pixels = (decoded(file, image_size) for file in sorted(folder.iterdir(), key=place))
        found = [image for image in pixels if image is not None][:most]
        by_class[folder.name] = np.array(found)
    return by_class


def class_folders(folder):
    """Return the folders of the classes by name, through folders that hold but one other."""
    inner = [each for each in folder.iterdir() if each.is_dir()]
    inner = [each for each in inner if not each.name.startswith((".", "__MACOSX"))]
    if len(inner) == 1:
        return class_folders(inner[0])
    return sorted(inner, key=lambda each: each.name)


def place(file):
    """Return the key of the order: files with numbers by their number, others after them."""
    stem = Path(file.name).stem
    return (int(stem) if re.fullmatch(r"\d+", stem) else 1 << 60, file.name)


def decoded(file, image_size):
    """Return a photograph as pixels from 0 to 255; None for a file that is none."""
    try:
        return decode(file.read_bytes(), image_size)
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
