"""Arguments of `fit` and `search`, the facts of the callbacks among them, and a budget."""

from __future__ import annotations

import dataclasses
import inspect
import json
import operator
import os
import re
import types
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kbatch import plain_text
from kbatch.callbacks.user_callbacks import belongs_to_trial
from kbatch.data.streams import Inputs, Source, as_arrays, training_source, unknown_inputs
from kbatch.data.validation import Data, prepare
from kbatch.errors import DataError, ProjectChangedError, SearchError
from kbatch.models.maker import described
from kbatch.models.preprocessor import Preprocess, preprocessed
from kbatch.records.project import Project

REFUSED = {
    "batch_size": "It is an axis of the search: use Space(batch_size=…)",
    "steps_per_epoch": "A trial ends by seconds: use seconds_per_trial, or epochs",
    "initial_epoch": "Every trial begins at the first update",
    "validation_steps": "All validation data are measured: pass a smaller set",
    "validation_freq": "Validation is measured at twelve marks of the horizon",
}


@dataclass(frozen=True)
class FitArguments:
    """The arguments of Keras' `fit` that kbatch takes.

    Attributes:
        x, y, sample_weight: Training data (see `kbatch.data.streams.training_source`).
        validation_data, validation_split, validation_batch_size: Validation data.
        batched: Boolean, whether a training dataset's elements are batches; `None` to find out.
        class_weight: Mapping from class to weight.
        callbacks: The user's own callbacks.
        verbose: Verbosity of Keras' `fit`; `None` for kbatch's own progress bar.
        epochs: Integer, for `search`: the horizon is the time of so many epochs of the baseline.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    validation_data: Any = None
    validation_split: float = 0.0
    validation_batch_size: int | None = None
    batched: bool | None = None
    class_weight: Mapping[int, float] | None = None
    callbacks: Sequence[Any] = ()
    verbose: Any = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.callbacks is None:
            object.__setattr__(self, "callbacks", ())
        _check_callbacks(self.callbacks)
        if not isinstance(self.batched, (bool, type(None))):
            raise SearchError(
                "`batched` must be True, False or None", repr(self.batched), "Leave it out"
            )
        if self.verbose not in (None, "auto", 0, 1, 2):
            raise SearchError(
                '`verbose` must be 0, 1, 2 or "auto", as in fit', repr(self.verbose), "Pass 0, say"
            )

    @classmethod
    def parse(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FitArguments:
        """Return the arguments of a `fit(x, y, …)` call."""
        if len(args) > 2:
            raise SearchError(
                "`fit` must get all but x and y by name",
                f"{len(args)} positional arguments",
                "Name them: validation_data=…",
            )
        given = {**dict(zip(("x", "y"), args, strict=False)), **kwargs}
        shuffle = given.pop("shuffle", True)
        if shuffle is not True:
            raise SearchError(
                "`shuffle` must be True",
                shuffle,
                "Leave it out: the data are shuffled in every pass",
            )
        known = {field.name for field in dataclasses.fields(cls)}
        for name in sorted(set(given) - known):
            rest = ", ".join(sorted(known - {"x", "y"}))
            received = f"{name}={given[name]!r}"
            raise SearchError(
                f"`{name}` must not be passed to fit or search",
                received,
                REFUSED.get(name, f"Pass only x, y, {rest}"),
            )
        if "x" not in given:
            raise SearchError("`fit` must get training data", "no x", "Pass x and y, or a dataset")
        if given.get("epochs") is not None:
            given["epochs"] = _whole(given["epochs"])
        return cls(**given)

    def same_objects(self, other: FitArguments) -> bool:
        """Whether two calls got the very same objects, so that data need not be prepared again."""
        return all(getattr(other, name) is value for name, value in vars(self).items())

    def data(self, inputs: Inputs = unknown_inputs, preprocess: Preprocess | None = None) -> Data:
        """Return the data, ready to be streamed and measured on.

        Args:
            inputs: Function that returns the shapes of the model's inputs.
            preprocess: What the model does to data before it trains; see
                `kbatch.models.preprocessor.preprocess_of`. Optional.
        """
        if preprocess is not None:
            return self.preprocessed_by(preprocess).data(inputs)
        validated = (self.validation_data, self.validation_split, self.validation_batch_size)
        data = prepare(self.x, self.y, self.sample_weight, *validated, self.batched, inputs)
        self._check_weights(data.training)
        return data

    def preprocessed_by(self, preprocess: Preprocess) -> FitArguments:
        """Return the same arguments with the data as a model trains on them."""
        if isinstance(self.x, keras.utils.PyDataset):
            raise DataError(
                "Data for a model that preprocesses them must be arrays or a tf.data.Dataset",
                "a PyDataset",
                "Let the PyDataset preprocess, and take the model's preprocessor off",
            )
        if self.y is None and self.sample_weight is not None:
            raise DataError(
                "Weights must come with labels for a model that preprocesses its data",
                "sample_weight without y",
                "Pass y too, or a dataset of (x, y, sample_weight)",
            )
        changed: dict[str, Any] = {}
        given = [each for each in (self.x, self.y, self.sample_weight) if each is not None]
        found = preprocessed(preprocess, *map(_readable, given))
        if not isinstance(found, tf.data.Dataset):
            changed |= dict(zip(("x", "y", "sample_weight"), found, strict=False))
        else:
            were_batches = isinstance(self.x, tf.data.Dataset) and self.batched is not False
            changed |= {"x": found, "y": None, "sample_weight": None, "batched": were_batches}
        validation = self.validation_data
        if validation is not None:
            parts = validation if isinstance(validation, (tuple, list)) else [validation]
            changed["validation_data"] = preprocessed(preprocess, *map(_readable, parts))
        return dataclasses.replace(self, **changed)

    def training(
        self, inputs: Inputs = unknown_inputs, preprocess: Preprocess | None = None
    ) -> Source:
        """Return the training data alone; see `data`."""
        if preprocess is not None:
            alone = dataclasses.replace(self, validation_data=None)
            return alone.preprocessed_by(preprocess).training(inputs)
        source = training_source(
            self.x, self.y, self.sample_weight, batched=self.batched, inputs=inputs
        )
        self._check_weights(source)
        return source

    def _check_weights(self, source: Source) -> None:
        if self.class_weight is not None and len(source.element_spec) == 3:
            raise DataError(
                "Examples must be weighed once",
                "class_weight and weights of the examples",
                "Multiply them into sample_weight",
            )


def _readable(part: Any) -> Any:
    """Arrays, lists and frames as arrays; a dataset as it is."""
    return part if isinstance(part, tf.data.Dataset) else as_arrays(part)


def _whole(number: Any) -> Any:
    """A whole number of NumPy's as Python's; any other value as it is, to be refused later."""
    try:
        return operator.index(number)
    except TypeError:
        return number


def _check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that are no list of Keras' callbacks."""
    if not isinstance(callbacks, (list, tuple)):
        raise SearchError(
            "`callbacks` must be a list of Keras callbacks",
            repr(callbacks),
            "Pass [keras.callbacks.EarlyStopping()], say",
        )
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise SearchError(
                "`callbacks` must be Keras callbacks",
                callback.__name__ if isinstance(callback, type) else type(callback).__name__,
                "Pass objects such as keras.callbacks.EarlyStopping()",
            )


CALLBACKS_FACT = "callbacks"
UNCOMPARED = ("self", "args", "kwargs", "verbose")  # parameters that change no training


def facts_of_callbacks(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the names and settings of callbacks, as JSON can hold them.

    TensorBoard and kbatch's own callbacks only look on, and may come and go.
    """
    facts = [
        {"name": type(each).__name__, "settings": _settings(each)}
        for each in callbacks
        if not _only_looks_on(each)
    ]
    read: list[dict[str, Any]] = json.loads(json.dumps(facts))
    return read


def callback_names(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of callbacks in words."""
    return ", ".join(str(each["name"]) for each in facts)


def agree_on_callbacks(project: Project, callbacks: Sequence[Any]) -> None:
    """Refuse callbacks other than the project's, by name, and keep those of a new one."""
    before, now = project.facts().get(CALLBACKS_FACT), facts_of_callbacks(callbacks)
    if before is None or (before != now and not project.store.records()):
        project.note({CALLBACKS_FACT: now})
        return
    changed = _differences(before, now)
    if changed:
        raise ProjectChangedError(
            f"A search must have the callbacks that it was started with ({project.folder})",
            "; ".join(changed),
            f"Pass callbacks=[{callback_names(before)}], made as they were, "
            "or start in another folder",
        )


def _differences(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[str]:
    old, new = (Counter(each["name"] for each in facts) for facts in (before, now))
    changed = [f"no {name}" for name in (old - new).elements()]
    changed += [f"{name}, which it did not have" for name in (new - old).elements()]
    for name in old & new:
        was, is_now = (_settings_of(facts, name) for facts in (before, now))
        changed += [f"{name} with other settings: {_apart(was, is_now)}"] * (was != is_now)
    return changed


def _settings_of(facts: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The settings of all callbacks of a class, in their order."""
    return [dict(each["settings"]) for each in facts if each["name"] == name]


def _apart(was: Sequence[Mapping[str, Any]], is_now: Sequence[Mapping[str, Any]]) -> str:
    pairs = zip(was, is_now, strict=False)
    told = [
        f"{name} was {one.get(name)!r} and is now {other.get(name)!r}"
        for one, other in pairs
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    return ", ".join(told)


def _only_looks_on(callback: Any) -> bool:
    own = type(callback).__module__.split(".")[0] == "kbatch"
    return own or isinstance(callback, keras.callbacks.TensorBoard) or belongs_to_trial(callback)


def _settings(callback: Any) -> dict[str, Any]:
    """The parameters that a callback was made with, as far as it keeps them."""
    found = {}
    for name in inspect.signature(type(callback).__init__).parameters:
        value = vars(callback).get(name, vars(callback).get(f"_{name}"))
        path = isinstance(value, os.PathLike) or (isinstance(value, str) and os.sep in value)
        if name not in UNCOMPARED and value is not None and not path:
            found[name] = _said(value)
    return found


def _said(value: Any) -> Any:
    """A setting in words, equal for equal settings of other processes."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        held = [each for each in (*cells, *(value.__defaults__ or ())) if _is_plain(each)]
        text = repr((_parts(value.__code__), held))
        return f"{value.__name__} {zlib.crc32(text.encode()):08x}"
    return described(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    """What a function does: its code and constants, without addresses and lines of files."""
    constants = [
        _parts(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts
    ]
    return (code.co_code.hex(), code.co_names, constants)


SECONDS = {"s": 1, "min": 60, "h": 3600}


def seconds_of(budget: str | float, instead: str = "") -> float:
    """Return the seconds of a budget; an error names the word that may stand instead of them."""
    text = str(budget).strip()
    parts = re.fullmatch(r"(.*?)\s*(s|min|h)?", text)
    amount = plain_text.number(parts[1]) if parts and not isinstance(budget, bool) else None
    if parts is None or amount is None or amount <= 0:
        other = f", or {instead!r}" if instead else ""
        raise SearchError(
            f"`budget` must be a time above 0, in s, min or h{other}",
            repr(budget),
            'Pass "90s", "30min", "2h" or a number of seconds',
        )
    return amount * SECONDS[parts[2] or "s"]
