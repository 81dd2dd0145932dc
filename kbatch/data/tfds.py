"""TFDS: a data set of TensorFlow Datasets, by its name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbatch.data import array_files, examples
from kbatch.data.examples import PARTS, TRAIN, Examples, Form, Part, Progress, Shares, parted
from kbatch.data.pictures import CHANNELS, words_of_classes
from kbatch.errors import DataError

PREFIX = "tfds:"
LONGEST = 300  # characters of an error of TFDS'


@dataclass(frozen=True)
class TfdsSource:
    """A data set of TFDS; see `kbatch.data.sources.NamedData`."""

    name: str  # such as `"mnist"`
    image_size: int  # height and width in pixels that pictures are resized to
    shares: Shares  # of examples that are not split yet
    seed: int
    builder: Any  # TFDS' builder of the data set
    total = None

    @property
    def images(self) -> bool:
        """Whether the examples are pictures."""
        return type(self._features[0]).__name__ == "Image"

    @property
    def form(self) -> Form | None:
        """The form of one example; `None` if examples have several, or are text."""
        if self.images:
            return Form((self.image_size, self.image_size, CHANNELS), "uint8")
        feature = self._features[0]
        shape, kind = getattr(feature, "shape", None), np.dtype(feature.np_dtype)
        if shape is None or None in shape or kind.kind not in array_files.NUMBERS:
            return None
        return Form(tuple(shape), kind.name)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if the labels are numbers."""
        return tuple(getattr(self._features[1], "names", None) or ())

    @property
    def _features(self) -> tuple[Any, Any]:
        x, y = self.builder.info.supervised_keys
        return self.builder.info.features[x], self.builder.info.features[y]

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples; see `kbatch.data.sources.NamedData`."""
        with self._errors_of_tfds():
            self.builder.download_and_prepare()
            named = self._splits()
            self._check_room(named)
            read: dict[str, Part] = {}
            for part, split in named.items():
                before = sum(len(labels) for _, labels in read.values())
                read[part] = self._read(self._pairs(split), before, on_progress)
        if not self.classes:
            by_name = {
                f"{kind}_{part}": array
                for part, pair in read.items()
                for kind, array in zip((array_files.X, array_files.Y), pair, strict=True)
            }
            return array_files.examples_of(by_name, f"TFDS {self.name}", self.shares, self.seed)
        return self._of_classes(read, set(named.values()))

    def _of_classes(self, read: dict[str, Part], used: set[str]) -> Examples:
        """Examples with names of classes, split where TFDS does not."""
        train, validation, test = parted(read, self.shares, self.seed, self._enough)
        count = sum(len(part[1]) for part in (train, validation, test) if part is not None)
        name = (
            f"{count:,} examples of {len(self.classes)} classes ({words_of_classes(self.classes)}) "
            f"of TFDS {self.name}"
        )
        left = sorted(set(self.builder.info.splits) - used)
        notes = (f"Splits that are left out: {', '.join(left)}.",) if left else ()
        return Examples(name, train, validation, test, self.classes, notes=notes)

    def _enough(self, labels: np.ndarray, shares: Shares) -> np.ndarray:
        """Refuse a class with too few examples to split, and return the labels."""
        counts = np.bincount(labels, minlength=len(self.classes))
        if counts.min() < shares.least:
            raise DataError(
                f"TFDS {self.name} must hold at least {shares.least} examples of each class",
                f"{counts.min()} of {self.classes[int(counts.argmin())]}",
                "Take another data set",
            )
        return labels

    def first(self, most: int, on_progress: Progress) -> dict[str, np.ndarray]:
        """Return the first pictures of each class to train on."""
        by_class: dict[str, list[np.ndarray]] = {name: [] for name in self.classes}
        with self._errors_of_tfds():
            self.builder.download_and_prepare()
            for pixels, label in self._pairs(TRAIN):
                images = by_class[self.classes[int(label)]]
                if len(images) < most:
                    images.append(self._resized(pixels))
                    on_progress(sum(map(len, by_class.values())))
                if all(len(images) == most for images in by_class.values()):
                    return {name: np.array(images) for name, images in by_class.items()}
        counts = ", ".join(f"{len(images)} of {name}" for name, images in by_class.items())
        raise DataError(
            f"TFDS must hold {most} images of each class", counts, "Prepare the whole data set"
        )

    def _pairs(self, split: str) -> Iterable[Any]:
        """The examples and labels of a split in their order, as NumPy arrays."""
        import tensorflow_datasets as tfds

        return tfds.as_numpy(  # type: ignore[no-any-return]
            self.builder.as_dataset(split=split, as_supervised=True, shuffle_files=False)
        )

    @contextmanager
    def _errors_of_tfds(self) -> Iterator[None]:
        """Turn errors of TFDS' downloader and of its file systems into one sentence."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:
            raise _unprepared(self.name, error) from error

    def _splits(self) -> dict[str, str]:
        """The names of TFDS' splits by part."""
        splits = list(self.builder.info.splits)
        named: dict[str, str] = {}
        for split in splits:
            if split in PARTS:
                named.setdefault(PARTS[split], split)
        if TRAIN not in named:
            raise DataError(
                f"TFDS {self.name} must have a split called train",
                ", ".join(splits) or "no splits",
                "Take another data set, or prepare a folder or an NPZ file of it",
            )
        return named

    def _check_room(self, named: dict[str, str]) -> None:
        form = self.form
        if form is None:
            return
        count = sum(self.builder.info.splits[split].num_examples for split in named.values())
        examples.check_room(
            count * math.prod(form.shape) * np.dtype(form.dtype).itemsize,
            f"{count:,} examples of shape {form.shape}",
            "Pass a smaller --image-size, or a slice of it as a folder or an NPZ file",
        )

    def _read(self, examples: Iterable[Any], before: int, on_progress: Progress) -> Part:
        """The examples of one split as arrays."""
        xs, ys = [], []
        for x, y in examples:
            xs.append(self._resized(x) if self.images else np.asarray(x))
            ys.append(y)
            on_progress(before + len(ys))
        if len({x.shape for x in xs}) != 1:
            raise DataError(
                f"All examples of TFDS {self.name} must have the same shape",
                f"{len({x.shape for x in xs})} shapes",
                "Pad them, and save them as an NPZ file",
            )
        labels = np.asarray(ys)
        return np.stack(xs), labels.astype("int32") if self.classes else labels

    def _resized(self, pixels: np.ndarray) -> np.ndarray:
        from PIL import Image

        if pixels.dtype != np.uint8:
            raise DataError(
                f"Pictures of TFDS {self.name} must be of uint8",
                str(pixels.dtype),
                "Convert them, and save them as an NPZ file",
            )
        grey = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        size = (self.image_size, self.image_size)
        picture = Image.fromarray(grey).convert("RGB").resize(size, Image.Resampling.BILINEAR)
        return np.asarray(picture, "uint8")


def look(name: str, image_size: int, shares: Shares, seed: int) -> TfdsSource:
    """Find a data set of TFDS, without downloading it."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            "A data set of TFDS needs tensorflow-datasets",
            "it is not installed",
            "pip install 'keras-kbatch[tfds]'",
        ) from error
    try:
        builder = tfds.builder(name)
        keys, features = builder.info.supervised_keys, builder.info.features
    except tfds.core.DatasetNotFoundError as error:
        near = difflib.get_close_matches(name, tfds.list_builders(), 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "See tensorflow.org/datasets"
        raise DataError("TFDS must know the data set", name, hint.rstrip("?")) from error
    except Exception as error:  # TFDS raises errors of any kind on names and on folders
        raise _unprepared(name, error) from error
    is_pair = isinstance(keys, tuple) and len(keys) == 2 and all(key in features for key in keys)
    if not is_pair:
        raise DataError(
            "A data set of TFDS must tell examples and labels (`supervised_keys`)",
            f"{name} with {keys}",
            "Save examples and labels as an NPZ file",
        )
    return TfdsSource(name, image_size, shares, seed, builder)


def _unprepared(name: str, error: Exception) -> DataError:
    return DataError(
        f"TFDS must be able to prepare {name}",
        f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}",
        "Check the network and the folder TFDS_DATA_DIR, or pass a folder of pictures",
    )
