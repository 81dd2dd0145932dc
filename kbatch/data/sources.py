"""Sources: the data that a command names, and labels in the form that a model wants."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kbatch.data import array_files, pictures, tfds
from kbatch.data.examples import Examples, Form, Part, Progress, Shares
from kbatch.data.pictures import words_of_classes
from kbatch.errors import DataError

MUST = (
    "--data must be a folder or zip with one folder of pictures per class, an NPZ file, tfds:NAME, "
    "or module:function"
)


class NamedData(Protocol):
    """Examples that a command names: looked at, and not read yet."""

    @property
    def images(self) -> bool:
        """Whether the examples are pictures."""

    @property
    def form(self) -> Form | None:
        """The form of one example; `None` if unknown before they are read, or text."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if unknown before they are read, or none."""

    @property
    def total(self) -> int | None:
        """How many examples there are; `None` if unknown before they are read."""

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples. The same seed gives the same split."""


def look(text: str, image_size: int | None, shares: Shares, seed: int) -> NamedData:
    """Find the examples that a text names, as far as that is quick. Imports no TensorFlow."""
    pixels = pictures.IMAGE_SIZE if image_size is None else image_size
    found: NamedData
    if text.startswith(tfds.PREFIX):
        found = tfds.look(text.removeprefix(tfds.PREFIX), pixels, shares, seed)
    elif _kind(text) == "folder":
        return pictures.look(Path(text), pixels, shares, seed)
    elif _kind(text) == "file":
        if not array_files.holds_arrays(Path(text)):
            return pictures.look(Path(text), pixels, shares, seed)
        found = array_files.look_npz(Path(text), shares, seed)
    elif ":" in text:
        found = array_files.look_function(text, shares, seed)
    else:
        raise DataError(f"{MUST}, that exists", text, "Check the path")
    if image_size is not None and not (found.images and isinstance(found, tfds.TfdsSource)):
        raise DataError(
            "--image-size must come with pictures in a folder, a zip or TFDS, which are resized",
            f"--image-size {image_size} and --data {text}",
            "Leave it out: arrays keep their shape",
        )
    return found


def _kind(text: str) -> str:
    """What a path leads to: a folder, a file, or nothing (an empty string)."""
    path = Path(text)
    try:
        if not text:
            return ""
        if path.is_dir():
            return "folder"
        if path.is_file():
            return "file"
        odd = path.exists()
    except (OSError, ValueError) as error:  # such as for a name that is too long
        raise DataError(MUST, f"{error}", "Check the path") from error
    if odd:
        raise DataError(MUST, f"{text}, a pipe or a device", "Check the path")
    return ""


NUMBERS, ONE_HOT = "numbers", "one-hot"
SPARSE = "sparse_categorical_crossentropy"
CATEGORICAL = ("categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge")
BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
OF_CLASSES = (SPARSE, *CATEGORICAL, *BINARY)


@dataclass(frozen=True)
class Wanted:
    """The labels that a model can be trained with."""

    loss: str | None  # Keras' own name of its loss; `None` if it is another
    outputs: int | None  # the length of its output; `None` if unknown, or there are several
    form: str | None = None  # `"numbers"` or `"one-hot"`, if the user says it; else `None`


def fitted(examples: Examples, wanted: Wanted) -> tuple[Examples, str]:
    """Return examples with labels in the form that the loss takes, and that form in words."""
    if examples.classes:
        form = _form_of_classes(wanted, examples.classes)
        _check_outputs(wanted, examples.classes, form)
        width = len(examples.classes)
    else:
        form = _form_of_numbers(wanted, examples.train[1])
        width = wanted.outputs or 1 + max(int(part[1].max()) for part in _parts(examples))
        for labels in (part[1] for part in _parts(examples)):
            _check_numbers(labels, wanted, form)
        _check_classes(examples.train[1], wanted)
    if form == "":
        return examples, "as they are"
    return _converted(examples, form, width), f"as {form}" + (" vectors" if form == ONE_HOT else "")


def _parts(examples: Examples) -> list[Part]:
    return [
        part for part in (examples.train, examples.validation, examples.test) if part is not None
    ]


def _form_of_classes(wanted: Wanted, classes: tuple[str, ...]) -> str:
    """The form of labels that are numbers of named classes."""
    if wanted.form is not None:
        return wanted.form
    if wanted.loss == SPARSE or wanted.outputs == 1:
        return NUMBERS
    if wanted.loss is not None:
        return ONE_HOT
    raise DataError(
        "The form of the labels must be said for a loss that is not Keras' own",
        f"a loss of your own for {len(classes)} classes",
        "Pass --labels numbers, or --labels one-hot",
    )


def _check_outputs(wanted: Wanted, classes: tuple[str, ...], form: str) -> None:
    """Refuse outputs that are not the number of classes."""
    if wanted.outputs is None or wanted.outputs == len(classes):
        return
    of_two = len(classes) == 2 and wanted.outputs == 1 and form == NUMBERS
    if of_two and wanted.loss not in (SPARSE, *CATEGORICAL):
        return
    raise DataError(
        "A model must have one output per class, or for two classes one output and a binary loss",
        f"{_counted(wanted.outputs, 'output')} and {wanted.loss or 'a loss of its own'}, for "
        f"{len(classes)} classes ({words_of_classes(classes)})",
        f"Build it with {len(classes)} outputs",
    )


def _form_of_numbers(wanted: Wanted, labels: np.ndarray) -> str:
    """The form of labels as the user saved them; empty to leave them as they are."""
    if labels.ndim > 2:  # a class for each pixel or word
        return ""
    if wanted.form is not None:
        return wanted.form
    if wanted.loss == SPARSE:
        return NUMBERS if wanted.outputs is not None else ""
    if wanted.loss in CATEGORICAL:
        return ONE_HOT
    if wanted.loss in BINARY and wanted.outputs == 1:
        return NUMBERS
    return ""


def _check_numbers(labels: np.ndarray, wanted: Wanted, form: str) -> None:
    """Refuse labels that the model's outputs cannot be compared with."""
    outputs = wanted.outputs
    columns = labels.shape[1] if labels.ndim == 2 else 1
    if form == "" or (labels.ndim == 2 and labels.shape[1] > 1):
        known = wanted.loss is not None and outputs is not None and labels.ndim <= 2
        if known and columns != outputs:
            raise DataError(
                "Labels must have one column per output of the model",
                f"labels of {_counted(columns, 'column')}, and {_counted(outputs or 0, 'output')}",
                f"Build it with {_counted(columns, 'output')}",
            )
        if form == NUMBERS and not ((labels == 1).sum(axis=1) == 1).all():
            raise DataError(
                f"Labels must be of one class an example for the loss {wanted.loss}",
                "rows with several, or none",
                "Take binary_crossentropy for several classes an example",
            )
        return
    is_whole = labels.dtype.kind in "iu" or bool((labels == np.round(labels)).all())
    low, high = labels.min(), labels.max()
    is_soft = wanted.loss in BINARY and low >= 0 and high <= 1
    if not is_whole and not is_soft:
        raise DataError(
            f"Labels must be whole numbers for the loss {wanted.loss}",
            f"numbers from {low:g} to {high:g}",
            "Take a loss of numbers, such as mse, or save the number of each class",
        )
    of_one = outputs == 1 and wanted.loss in (SPARSE, *CATEGORICAL)
    most = np.inf if outputs is None else max(outputs - 1, 1)
    if low < 0 or high > most or of_one:
        upwards = "" if outputs is None else f" to {most}"
        has = "" if outputs is None else f": the model has {_counted(outputs, 'output')}"
        raise DataError(
            f"Labels must be numbers of classes from 0{upwards}{has}",
            f"labels from {low:g} to {high:g}, and the loss {wanted.loss}",
            "Number the classes from 0, or give the model as many outputs as there are classes",
        )


def _check_classes(labels: np.ndarray, wanted: Wanted) -> None:
    """Refuse examples of one class: a model that always answers it is always right."""
    if wanted.loss in OF_CLASSES and labels.ndim <= 2 and bool((labels == labels[:1]).all()):
        raise DataError(
            f"Examples of two classes or more must be there for the loss {wanted.loss}",
            f"{len(labels)} examples to train on, all with the label {labels[0].tolist()}",
            "Add examples of another class",
        )


def _converted(examples: Examples, form: str, width: int) -> Examples:
    """The examples with labels of a form."""

    def part(given: Part) -> Part:
        x, y = given
        if form == NUMBERS:
            flat = y.argmax(axis=1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(len(y))
            return x, flat.astype("int32") if (flat == np.round(flat)).all() else flat
        if y.ndim == 2 and y.shape[1] > 1:
            return x, y
        return x, np.eye(width, dtype="float32")[y.reshape(len(y)).astype("int64")]

    test = None if examples.test is None else part(examples.test)
    return dataclasses.replace(
        examples, train=part(examples.train), validation=part(examples.validation), test=test
    )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
