"""Taken: what a call of `fit` means for a search: model, data, baseline, metric and length."""

from __future__ import annotations

import copy
import dataclasses
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.callbacks import user_callbacks
from kbatch.errors import DataError, ModelError, SearchError
from kbatch.models.compilation import CompileArguments
from kbatch.models.preprocessor import Preprocess, hide, preprocess_of
from kbatch.recipe import Recipe
from kbatch.recipe_words import TUNED_OPTIMIZERS
from kbatch.runtime.keras_private import compile_as_keras, compiled_by_user
from kbatch.space import Space
from kbatch.standin.copies import Copies, SameModel, Seen, alone, copies_of, in_tuple
from kbatch.standin.fit_call import FitCall
from kbatch.training.arguments import FitArguments
from kbatch.training.goal import OWN
from kbatch.training.metrics import ACCURACIES, LOSS, ModelMetrics, direction_of

KERAS_BATCH_SIZE = 32
ONLY_LATER = (keras.callbacks.BackupAndRestore,)  # of the winner's training, not of a search
PATHS = ("filepath", "filename", "log_dir")  # where Keras' callbacks write
FIT_DATA = ("x", "y", "sample_weight")
PASSED_ON = (
    *("x", "y", "sample_weight", "validation_data", "validation_split"),
    *("validation_batch_size", "class_weight", "callbacks"),
)
DATASETS = (tf.data.Dataset, keras.utils.PyDataset)


@dataclass(frozen=True)
class Taken:
    """A call of `fit`, as a search takes it.

    Attributes:
        build: Build function of models like the one that was to be trained.
        arguments: Arguments of a tuner's `search` by name.
        batch_size: Integer, examples of an update today.
        metric: String, the metric to score by.
        notes: Tuple of sentences, what was taken and what is not as in the call.
    """

    call: FitCall
    build: Copies | SameModel
    arguments: Mapping[str, Any]
    batch_size: int
    metric: str
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, call: FitCall, metric: str | None = None, validation_split: float | None = None
    ) -> Taken:
        """Return what a call means for a search.

        Raises:
            KbatchError: If something of it cannot be searched.
        """
        _check_model(call.model)
        arguments, notes = readable_arguments(call)
        notes += _single_steps(call.model)
        batch = _batch_size(arguments["x"], call.arguments["batch_size"])
        preprocess = preprocess_of(call.model)
        if validation_split is not None and "validation_data" not in arguments:
            _split(arguments, validation_split)
        if "validation_data" not in arguments and not arguments["validation_split"]:
            raise SearchError(
                "A training must have something to validate on",
                "a fit without validation_data and validation_split",
                "Pass --validation-split 0.2 (in Python validation_split=0.2)",
            )
        if preprocess is not None:
            arguments = _seen(arguments, preprocess)
            hide(call.model)  # until the search has ended
            notes.append("Data are preprocessed before they are trained on, as in fit")
        inputs = first_inputs(arguments["x"])
        build = copies_of(call.model, inputs, unlabelled=_label(arguments))
        name = metric or f"val_{_scored(build(), arguments)}"
        notes = [*notes, *left_out(call), build.sentence]
        return cls(call, build, arguments, batch, name, tuple(notes))

    @property
    def epochs(self) -> int:
        """Integer, the epochs that were asked for."""
        return self.call.epochs

    @property
    def told(self) -> str:
        """What was taken, in words."""
        model, place = type(self.call.model).__name__, self.call.place
        where = "" if place is None else f" of {place[0]}, line {place[1]}"
        lines = [
            f"Taken: fit{where}: {model}, batch {self.batch_size}, {self.epochs} epochs, scored by "
            f"{self.metric}.",
            *(f"{note}." for note in self.notes),
        ]
        return "\n".join(lines)

    def space(self, given: Space | None, axes: Mapping[str, Any]) -> Space:
        """Return the space of the search, whose baseline is the call's own recipe.

        Args:
            given: `Space`; `None` for the usual one.
            axes: Arguments of a `Space` that take the place of the usual ones.
        """
        baseline = Recipe(batch_size=self.batch_size)
        if given is not None:
            return _with_baseline(given, baseline)
        usual: dict[str, Any] = {"optimizer": TUNED_OPTIMIZERS, "baseline": baseline}
        policy = str(keras.config.dtype_policy().name)
        if policy not in Space().policies:
            usual["policy"] = (policy, *Space().policies)
        if self.batch_size not in Space().batch_size:  # else those above the examples are left out
            sizes = {size for size in Space().batch_size if size <= self._examples()}
            usual["batch_size"] = tuple(sorted({*sizes, self.batch_size}))
        if isinstance(self.build, SameModel):
            usual["policy"] = (policy,)
        return Space(**{**usual, **axes})

    def callbacks_of_search(self, folder: Path) -> list[Any]:
        """Return copies of the callbacks whose files do not take the place of the script's own."""
        own = [each for each in self.arguments["callbacks"] if not isinstance(each, ONLY_LATER)]
        user_callbacks.check_callbacks(own, schedule=False)
        copies = copy.deepcopy(own)
        for callback in copies:
            for name in PATHS:
                path = vars(callback).get(name)
                if isinstance(path, (str, os.PathLike)):
                    moved = folder / "callbacks" / Path(path).name
                    moved.parent.mkdir(parents=True, exist_ok=True)
                    setattr(callback, name, str(moved))
        return copies

    @property
    def gets_batches(self) -> bool:
        """Whether the data come in batches, so that `fit` takes no batch size."""
        return isinstance(self.arguments["x"], DATASETS)

    def chance(self) -> float | None:
        """Return the value of a metric that a model computes by steps of its own, before training.

        `None` for other models, of which labels and outputs tell chance.
        """
        kind = type(self.call.model)
        own = any(getattr(kind, name) is not getattr(keras.Model, name) for name in OWN)
        if not own and self.build.unlabelled is None:
            return None
        return value_before(self.build(), self.arguments)[self.metric.removeprefix("val_")]

    def _examples(self) -> float:
        """About how many examples there are to train on."""
        x, share = self.arguments["x"], self.arguments.get("validation_split", 0.0)
        if isinstance(x, tf.data.Dataset):
            return max(int(x.cardinality()), 1) * self.batch_size
        if isinstance(x, keras.utils.PyDataset):
            return (x.num_batches or 1) * self.batch_size
        return len(keras.tree.flatten(x)[0]) * (1 - share)


def first_inputs(x: Any) -> Any:
    """Return inputs that a model can be called on: two examples, or the first batch."""
    if isinstance(x, tf.data.Dataset):
        for element in x.take(1):
            return element[0] if isinstance(element, tuple) else element
        return None
    if isinstance(x, keras.utils.PyDataset):
        element = x[0]
        return element[0] if isinstance(element, tuple) else element
    try:
        return keras.tree.map_structure(lambda part: np.asarray(part[:2]), x)
    except (TypeError, KeyError, ValueError):  # what kbatch refuses with a sentence later
        return None


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError("`model` must be a keras.Model", type(model).__name__, "Pass the model")
    if not model.compiled:
        raise ModelError(
            "A model must be compiled before it is tuned", "no compile()", "Call model.compile"
        )


def _seen(given: Mapping[str, Any], preprocess: Preprocess) -> dict[str, Any]:
    """The arguments with the data as the model trains on them."""
    found = vars(FitArguments.parse((), given).preprocessed_by(preprocess))
    return {**given, **{name: found[name] for name in found if found[name] is not None}}


def _with_baseline(space: Space, baseline: Recipe) -> Space:
    if space.baseline != Recipe():
        return space
    return dataclasses.replace(space, baseline=baseline)


def _label(given: dict[str, Any]) -> Seen | None:
    """Give inputs that come alone the labels that a stream must have.

    Returns what of the inputs the steps are to see; `None` for inputs that come with labels.
    """
    x, validation = given["x"], given.get("validation_data")
    if isinstance(x, keras.utils.PyDataset) or "y" in given or _has_labels(x):
        return None
    if _has_labels(validation):
        raise DataError(
            "Data to validate on must have labels if those to train on have, and else none",
            "labels to validate on alone",
            "Leave them out, or pass labels to train on too",
        )
    if isinstance(x, tf.data.Dataset):
        given["x"] = x.map(_with_unseen)
    else:
        given["y"] = _unseen(x)
    if isinstance(validation, tf.data.Dataset):
        given["validation_data"] = validation.map(_with_unseen)
    elif validation is not None:
        inputs = validation[0] if isinstance(validation, (tuple, list)) else validation
        given["validation_data"] = (inputs, _unseen(inputs))
    in_tuples = isinstance(x, tf.data.Dataset) and isinstance(x.element_spec, tuple)
    return in_tuple if in_tuples else alone


def _has_labels(data: Any) -> bool:
    """Whether a dataset, or what validates, tells inputs and labels apart."""
    if isinstance(data, tf.data.Dataset):
        return isinstance(data.element_spec, tuple) and len(data.element_spec) > 1
    if isinstance(data, keras.utils.PyDataset):
        return isinstance(data[0], tuple) and len(data[0]) > 1
    return isinstance(data, tuple) and len(data) > 1


def _unseen(x: Any) -> np.ndarray:
    """Labels that no step sees; they differ, as labels of which kbatch says nothing."""
    return (np.arange(len(keras.tree.flatten(x)[0])) % 2).astype("int32")


def _with_unseen(x: Any) -> Any:
    return x, tf.range(tf.shape(tf.nest.flatten(x)[0])[0]) % 2


def _scored(model: keras.Model, given: Mapping[str, Any]) -> str:
    """The metric to score by, of a model that may name its metrics by its outputs or itself."""
    found = ModelMetrics(model, CompileArguments())
    if len(found.outputs) < 2 and found.names:
        known = [name for name in found.names if direction_of(name) is not None]
        return next(name for name in (found.scored, *known, LOSS) if direction_of(name))
    measured = list(value_before(model, given))
    for accuracy in ACCURACIES:
        for name in measured:
            if name == accuracy or name.endswith(f"_{accuracy}"):
                return name
    losses = {LOSS, *(f"{output}_{LOSS}" for output in found.outputs)}
    own = [name for name in measured if name not in losses and direction_of(name) is not None]
    return [*own, LOSS][0] if found.names else LOSS


def value_before(model: keras.Model, given: Mapping[str, Any]) -> dict[str, float]:
    """Return what a model measures before it is trained, on the validation data."""
    validation = given.get("validation_data")
    if validation is None:
        share = float(given["validation_split"])
        parts = [given["x"], given["y"]]
        validation = [keras.tree.map_structure(lambda each: _last(each, share), p) for p in parts]
    pairs = validation if isinstance(validation, DATASETS) else None
    arguments = {"x": pairs} if pairs is not None else dict(zip(FIT_DATA, validation, strict=False))
    try:
        found = model.evaluate(**arguments, verbose=0, return_dict=True)
    except Exception as error:  # the user's own test_step, or none, raises any kind
        raise ModelError(
            "A model must measure its validation data with evaluate()",
            " ".join(f"{type(error).__name__}: {error}".split())[:160],
            "Give it a test_step beside its train_step",
        ) from error
    return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}


def _last(array: Any, share: float) -> Any:
    return array[int(len(array) * (1 - share)) :]


def _was_trained(model: keras.Model) -> bool:
    optimizer = model.optimizer
    return optimizer is not None and optimizer.built and int(optimizer.iterations) > 0


def _single_steps(model: keras.Model) -> list[str]:
    """Let a model make one update a call, so that the clock is read after each one."""
    steps = model.steps_per_execution
    if steps == 1:
        return []
    compile_as_keras(model, **{**compiled_by_user(model), "steps_per_execution": 1})
    return [
        f"steps_per_execution={steps} is left out, in the baseline too: the clock is read after "
        "each update. Compile with it again afterwards if an update takes a millisecond"
    ]


def left_out(call: FitCall) -> list[str]:
    """Return sentences on what of a call a search does not follow."""
    given, notes = call.arguments, list[str]()
    if _was_trained(call.model):
        notes.append("The optimizer begins anew in each training, without what it had gathered")
    if given["shuffle"] is False:
        notes.append("shuffle=False is left out: the data are shuffled in every pass")
    if given["initial_epoch"]:
        first = given["initial_epoch"]
        notes.append(f"initial_epoch={first}: only the epochs after it count, from 0 in the search")
    own = [type(each).__name__ for each in callbacks_of(call) if _is_own(each)]
    if own:
        notes.append(f"Callbacks of your own ({', '.join(own)}) run in each trial too, as copies")
    return notes


def _is_own(callback: Any) -> bool:
    """Whether nobody but its author knows what a callback does."""
    own = not type(callback).__module__.startswith("keras.")
    return own or isinstance(callback, keras.callbacks.LambdaCallback)


def readable_arguments(call: FitCall) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a search that `fit` was given, and sentences on what they became.

    Data can be read again in each pass, as many batches of them as `fit` was to read.
    """
    given, notes = dict(call.arguments), list[str]()
    given["x"] = _readable(given["x"], given["steps_per_epoch"], notes)
    given["validation_data"] = _cut(given["validation_data"], given["validation_steps"], notes)
    given["callbacks"] = callbacks_of(call)
    arguments = {name: given[name] for name in PASSED_ON if given[name] is not None}
    if isinstance(given["x"], tf.data.Dataset):
        arguments["batched"] = True  # as `fit` takes it
    return arguments, notes


def callbacks_of(call: FitCall) -> list[Any]:
    """Return the callbacks that `fit` was given."""
    callbacks = call.arguments["callbacks"]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return [] if callbacks is None else list(keras.tree.flatten(callbacks))


def _readable(x: Any, steps: int | None, notes: list[str]) -> Any:
    """Training data that can be read again in each pass, cut to the steps of an epoch."""
    if _is_generator(x):
        x = _read(x, steps, notes, "steps_per_epoch")
    if isinstance(x, tf.data.Dataset) and steps is not None:
        notes.append(f"A pass over the data is steps_per_epoch={steps} batches")
        return x.take(steps)
    if isinstance(x, keras.utils.PyDataset) and steps is not None and steps < len(x):
        raise DataError(
            "A PyDataset must be read whole in each epoch",
            f"steps_per_epoch={steps} of {len(x)} batches",
            "Leave out steps_per_epoch",
        )
    return x


def _is_generator(x: Any) -> bool:
    return isinstance(x, types.GeneratorType) or hasattr(x, "__next__")


def _read(generator: Any, steps: int | None, notes: list[str], argument: str) -> tf.data.Dataset:
    """The batches of one pass over a Python generator, which can be read only once."""
    if steps is None:
        raise DataError(
            "A Python generator must come with the number of its batches",
            f"a generator without {argument}",
            f"Pass {argument}, or a keras.utils.PyDataset",
        )
    batches = [batch for _, batch in zip(range(steps), generator, strict=False)]
    notes.append(f"The generator was read once: each pass takes these {len(batches)} batches again")
    flat = [keras.tree.flatten(batch) for batch in batches]
    parts = [
        np.concatenate([np.asarray(each) for each in part]) for part in zip(*flat, strict=True)
    ]
    whole = keras.tree.pack_sequence_as(batches[0], parts)
    return tf.data.Dataset.from_tensor_slices(whole).batch(len(flat[0][0]))


def _cut(validation: Any, steps: int | None, notes: list[str]) -> Any:
    """Validation data that can be read again, cut to their steps."""
    if _is_generator(validation):
        return _read(validation, steps, notes, "validation_steps")
    if steps is None or not isinstance(validation, tf.data.Dataset):
        return validation
    return validation.take(steps)


def _split(given: dict[str, Any], share: float) -> None:
    """Cut validation data off the training data, as `--validation-split` asks."""
    x = given["x"]
    if not isinstance(x, tf.data.Dataset):  # arrays; kbatch refuses others with a sentence
        given["validation_split"] = share
        return
    batches = int(x.cardinality())
    if batches < 2:
        raise DataError(
            "A dataset must tell the number of its batches to be split",
            f"cardinality {batches}",
            "Pass validation_data",
        )
    count = min(max(round(share * batches), 1), batches - 1)
    given["x"], given["validation_data"] = x.skip(count), x.take(count)


def batch_size_of(call: FitCall) -> int:
    """Return the examples of an update today."""
    return _batch_size(call.arguments["x"], call.arguments["batch_size"])


def _batch_size(x: Any, given: int | None) -> int:
    if not isinstance(x, DATASETS):
        return int(given or KERAS_BATCH_SIZE)
    first = x[0] if isinstance(x, keras.utils.PyDataset) else next(iter(x.take(1)))
    return int(keras.tree.flatten(first)[0].shape[0])
