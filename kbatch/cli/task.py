"""Task: the model and the data that a command searches for."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.cli.command import errors_of_users_code
from kbatch.cli.search_options import CaseOptions, SearchOptions
from kbatch.data import case_study, sources
from kbatch.data.case_study import CLASSES, CaseStudyPictures
from kbatch.data.examples import Examples, shares_of
from kbatch.data.pictures import CHANNELS, IMAGE_SIZE
from kbatch.data.sources import OF_CLASSES, NamedData, Wanted
from kbatch.errors import DataError, ModelError, SearchError
from kbatch.model_spec import ModelSpec, values_of_text
from kbatch.runtime import signals, users_code
from kbatch.runtime.nvidia import may_use_card
from kbatch.runtime.users_code import Imported, imported

if TYPE_CHECKING:
    from kbatch.training.metrics import ModelMetrics


@dataclass(frozen=True)
class Searched:
    """A model and its data, ready to be searched."""

    spec: ModelSpec
    examples: Examples  # whose labels suit the model's loss
    metric: str = "val_accuracy"  # the scored metric
    direction: str | None = None  # `"max"` or `"min"`; `None` if its name tells
    chance: float | None = None  # the metric of a model that learned nothing; `None` to infer it
    # facts of the search that an earlier run of the project must have had too
    facts: tuple[tuple[str, Any], ...] = ()
    words: str = ""  # a line on model and labels for the terminal; empty for none


@dataclass(frozen=True)
class Task:
    """The model and the data of a search."""

    command: str  # the command without its options, for the report
    spec: ModelSpec  # of the model, whose function can be sent to a worker
    source: NamedData  # the examples, not read yet
    example: Any  # the form of one example; `None` for that of the model's input
    size: str  # the size of one example in words, such as `64 px`; empty if it goes without

    def searched(self, examples: Examples) -> Searched:
        """Return model and examples, once TensorFlow may be used."""
        return Searched(self.spec, examples)


@dataclass(frozen=True)
class OwnTask(Task):
    """A task whose model and examples are made to agree, by the options of the command."""

    options: SearchOptions

    def searched(self, examples: Examples) -> Searched:
        """Return model and examples, whose labels suit the loss."""
        options, spec = self.options, self.spec
        if isinstance(spec.build, Imported):
            must = f"The module {spec.build.module} must be importable"
            do = "Import it in Python to see where it fails"
            with errors_of_users_code(must, do, DataError):
                spec = dataclasses.replace(spec, build=spec.build.load())
        model = made(spec)
        check_loss(model, options.loss)
        of = measured(model, spec)
        if not model.compiled:
            spec = with_metric(spec, options.metric, of.known_loss())
            of = measured(model, spec)
        metric = scored(of, options.metric)
        fitting, words = sources.fitted(examples, wanted(of, options.labels))
        return Searched(
            spec,
            fitting,
            metric,
            options.direction,
            options.chance,
            (("classes", list(examples.classes)), ("split", options.split)),
            f"Model: {model.name}, {model.count_params():,} weights; labels {words}; "
            f"scored by {metric}.",
        )


def task_of_case_study(options: CaseOptions) -> tuple[CaseOptions, Task]:
    """Return the options, and the case study's model and pictures, which agree."""
    options.check()
    case_study.check(options.data)
    size = options.image_size
    spec = ModelSpec(
        functools.partial(named_model, options.model, size, CLASSES),
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seed=options.seed,
    )
    source = CaseStudyPictures(options.data, size, options.seed)
    return options, Task("kbatch cats-vs-dogs", spec, source, (size, size, CHANNELS), f"{size} px")


NAMED = ("cnn", "small-resnet")  # models of the case study


def task_of(options: SearchOptions) -> tuple[SearchOptions, Task]:
    """Return the options for the data that they name, and model and data."""
    users_code.use_folder(os.getcwd())
    options.check()
    if may_use_card():  # then the space asks TensorFlow for the GPU, which takes none of its memory
        with signals.at_once(), signals.turned_away():
            import tensorflow  # noqa: F401
    own = None if options.model in NAMED else imported(options.model)
    source = sources.look(options.data, options.image_size, shares_of(options.split), options.seed)
    if not source.images and "augmentation" not in options.axes:
        options = dataclasses.replace(options, axes={"augmentation": "none", **options.axes})
    spec = ModelSpec(
        own or _named_build(options, source),
        loss=options.loss,
        metrics=None if options.metric is None or options.loss is None else [options.metric],
        seed=options.seed,
        values=None if options.values is None else values_of_text(options.values),
    )
    command = f"kbatch search {shlex.quote(options.model)}"
    return options, OwnTask(command, spec, source, source.form, _size(source), options)


def _named_build(options: SearchOptions, source: NamedData) -> Callable[[], Any]:
    """The function of a model of the case study's, which takes pictures of named classes only."""
    if not (source.images and source.classes):
        raise ModelError(
            f"{options.model} must be given pictures of named classes",
            f"--data {options.data}",
            "Pass a folder of pictures, or a model of your own as module:function",
        )
    size = options.image_size or IMAGE_SIZE
    return functools.partial(compiled_model, options.model, size, len(source.classes))


def _size(source: NamedData) -> str:
    """The size of pictures that are resized, or the shape of an array."""
    if source.form is None:
        return ""
    is_resized = source.images and source.classes
    return f"{source.form.shape[0]} px" if is_resized else f"shape {source.form.shape}"


def named_model(name: str, image_size: int, classes: int) -> Any:
    """Return a model of the case study's for a number of classes."""
    from kbatch.models.case_study import MODELS

    return MODELS[name](image_size, classes)


def compiled_model(name: str, image_size: int, classes: int) -> Any:
    """Return a model of the case study's, compiled for a number of classes."""
    model = named_model(name, image_size, classes)
    loss = "binary_crossentropy" if classes == 2 else "sparse_categorical_crossentropy"
    model.compile("adam", loss, metrics=["accuracy"])
    return model


ONE_ROW = 2  # axes of an output of one row per example


def made(spec: ModelSpec) -> Any:
    """Make the model once, with the default values of its hyperparameters."""
    import keras

    from kbatch.models.maker import ModelMaker

    do = "Call the function in Python to see where it fails"
    with errors_of_users_code("A model must be made", do):
        maker = ModelMaker.of(spec)
        model = maker.raw(maker.own_policy)
    if not isinstance(model, keras.Model):
        raise ModelError(
            "The function must return a keras.Model", type(model).__name__, "Return the model"
        )
    return model


def check_loss(model: Any, loss: str | None) -> None:
    """Refuse a model without a loss, one with two, and a loss that Keras does not know."""
    import keras

    if model.compiled and loss is not None:
        raise ModelError(
            "--loss must come with a function that does not compile the model",
            f"--loss {loss}, and a compiled model",
            "Leave it out: the loss of the model is taken",
        )
    if model.compiled:
        return
    if loss is None:
        raise ModelError(
            "A model must have a loss",
            "a model that is not compiled",
            "Compile it in the function, or pass --loss sparse_categorical_crossentropy, say",
        )
    try:
        keras.losses.get(loss)
    except (ValueError, TypeError) as error:
        raise ModelError(
            "--loss must be a loss of Keras', by name",
            loss,
            "Pass mse or sparse_categorical_crossentropy, say",
        ) from error


def measured(model: Any, spec: ModelSpec) -> ModelMetrics:
    """Return what is known of the metrics and losses of a model."""
    from kbatch.models.compilation import CompileArguments
    from kbatch.training.metrics import ModelMetrics

    return ModelMetrics(model, CompileArguments(spec.loss, spec.metrics))


def wanted(of: ModelMetrics, form: str | None) -> Wanted:
    """Return the labels that a model can be trained with."""
    shapes = of.output_shapes
    is_row = len(shapes) == 1 and len(shapes[0]) == ONE_ROW
    return Wanted(of.known_loss(), shapes[0][1] if is_row else None, form)


def with_metric(spec: ModelSpec, metric: str | None, loss: str | None) -> ModelSpec:
    """Return the specification of a model that is not compiled, with the metric to score it by."""
    if metric is None:
        return dataclasses.replace(spec, metrics=["accuracy"] if loss in OF_CLASSES else None)
    return dataclasses.replace(spec, metrics=None if _bare(metric) == "loss" else [_bare(metric)])


def scored(of: ModelMetrics, metric: str | None) -> str:
    """Return the metric to score by, such as `"val_accuracy"`."""
    if metric is None:
        return f"val_{of.scored}"
    bare = of.own_name(_bare(metric))
    if of.split(bare)[2] not in (*of.names, "loss"):
        raise SearchError(
            "--metric must be a metric that the model is compiled with, or loss",
            metric,
            f"Pass one of {', '.join(dict.fromkeys([*of.names, 'loss']))}",
        )
    return f"val_{bare}"


def _bare(metric: str) -> str:
    return metric.removeprefix("val_")
