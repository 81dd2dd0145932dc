"""Task: the model and the data that a command searches for."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kbatch.cli.search_options import CaseOptions, SearchOptions
from kbatch.data import case_study, sources
from kbatch.data.case_study import PER_CLASS
from kbatch.data.examples import Examples, Progress, shares_of
from kbatch.data.pictures import IMAGE_SIZE
from kbatch.data.sources import OF_CLASSES, Wanted
from kbatch.errors import DataError, KbatchError, ModelError, SearchError
from kbatch.model_spec import ModelSpec, values_of_text
from kbatch.runtime import signals, users_code
from kbatch.runtime.nvidia import may_use_card
from kbatch.runtime.users_code import Imported, imported

if TYPE_CHECKING:
    from kbatch.data.sources import NamedData
    from kbatch.training.metrics import Measured


@dataclass(frozen=True)
class Searched:
    """A model and its data, ready to be searched.

    Attributes:
        spec: `ModelSpec` of the model.
        examples: `Examples` whose labels suit the model's loss.
        metric: String, the scored metric.
        direction: `"max"` or `"min"`; `None` if its name tells.
        chance: Float, the metric of a model that learned nothing; `None` to infer it.
        facts: Facts of the search that an earlier run of the project must have had too.
        words: String, a line on model and labels for the terminal; empty for none.
    """

    spec: ModelSpec
    examples: Examples
    metric: str = "val_accuracy"
    direction: str | None = None
    chance: float | None = None
    facts: tuple[tuple[str, Any], ...] = ()
    words: str = ""


class Task(Protocol):
    """The model and the data of a search, in the order in which a search asks for them."""

    @property
    def command(self) -> str:
        """The command without its options, such as `kbatch cats-vs-dogs`, for the report."""

    @property
    def images(self) -> bool:
        """Whether the examples are pictures, which may be augmented."""

    @property
    def total(self) -> int | None:
        """How many examples are read while a bar is shown; `None` if unknown."""

    def check(self) -> None:
        """Refuse data that cannot be used, as far as that is quick. Imports no TensorFlow."""

    def spec(self) -> ModelSpec:
        """Return the model to find the largest batch of. Its function can be sent to a worker."""

    def example(self) -> Any:
        """Return the shape of one example; `None` for that of the model's input."""

    def load(self, on_progress: Progress) -> Examples:
        """Return the data."""

    def size(self) -> str:
        """Return the size of one example in words, such as `64 px`; empty if it goes without."""

    def searched(self, examples: Examples) -> Searched:
        """Return model and data, once TensorFlow may be used."""


NAMED = ("cnn", "small-resnet")  # models of the case study


def task_of(options: SearchOptions) -> tuple[SearchOptions, OwnTask]:
    """Return the options for the data that they name, and model and data."""
    users_code.use_folder(os.getcwd())
    options.check()
    if may_use_card():  # then the space asks TensorFlow for the GPU, which takes none of its memory
        with signals.at_once(), signals.turned_away():
            import tensorflow  # noqa: F401
    build = None if options.model in NAMED else imported(options.model)
    found = sources.look(options.data, options.image_size, shares_of(options.split), options.seed)
    if not found.images and "augmentation" not in options.axes:
        options = dataclasses.replace(options, axes={"augmentation": "none", **options.axes})
    return options, OwnTask(options, build, found)


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


@dataclass(frozen=True)
class OwnTask:
    """The task of `kbatch search`; see `Task`.

    Attributes:
        options: The options of the command.
        build: The user's function; `None` for a model of the case study's.
        source: The examples, not read yet.
    """

    options: SearchOptions
    build: Imported | None
    source: NamedData

    @property
    def command(self) -> str:
        """The command with the model."""
        return f"kbatch search {shlex.quote(self.options.model)}"

    @property
    def images(self) -> bool:
        """Whether the examples are pictures."""
        return self.source.images

    @property
    def total(self) -> int | None:
        """The number of examples, if it is known."""
        return self.source.total

    def check(self) -> None:
        """Refuse a model of the case study's for other data than pictures."""
        if self.build is None and not (self.source.images and self.source.classes):
            raise ModelError(
                f"{self.options.model} must be given pictures of named classes",
                f"--data {self.options.data}",
                "Pass a folder of pictures, or a model of your own as module:function",
            )

    def spec(self) -> ModelSpec:
        """Return the model, whose function is not imported yet."""
        options = self.options
        metrics = None if options.metric is None or options.loss is None else [options.metric]
        values = None if options.values is None else values_of_text(options.values)
        return ModelSpec(
            self.build or self._named(),
            loss=options.loss,
            metrics=metrics,
            seed=options.seed,
            values=values,
        )

    def _named(self) -> Any:
        size = self.options.image_size or IMAGE_SIZE
        return functools.partial(compiled_model, self.options.model, size, len(self.source.classes))

    def example(self) -> Any:
        """Return the form of one example, if it is known."""
        return self.source.form

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples."""
        return self.source.load(on_progress)

    def size(self) -> str:
        """Return the size of pictures, or the shape of an array."""
        form = self.source.form
        if form is None:
            return ""
        is_resized = self.source.images and self.source.classes
        return f"{form.shape[0]} px" if is_resized else f"shape {form.shape}"

    def searched(self, examples: Examples) -> Searched:
        """Return model and examples, whose labels suit the loss."""
        options, spec = self.options, self.spec()
        if self.build is not None:
            spec = dataclasses.replace(spec, build=_loaded(self.build))
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


def _loaded(build: Imported) -> Any:
    """The user's function, whose module may fail while it is imported."""
    try:
        return build.load()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        raise DataError(
            f"The module {build.module} must be importable",
            " ".join(f"{type(error).__name__}: {error}".split()),
            "Import it in Python to see where it fails",
        ) from error


@dataclass(frozen=True)
class CatsVsDogs:
    """The task of `kbatch cats-vs-dogs`; see `Task`."""

    options: CaseOptions
    command = "kbatch cats-vs-dogs"
    images = True
    total = 2 * PER_CLASS

    def check(self) -> None:
        """Refuse a text that cannot be a source of pictures."""
        case_study.check(self.options.data)

    def spec(self) -> ModelSpec:
        """Return the model of `--model`."""
        build = functools.partial(named_model, self.options.model, self.options.image_size, 2)
        return ModelSpec(
            build, loss="binary_crossentropy", metrics=["accuracy"], seed=self.options.seed
        )

    def example(self) -> Any:
        """Return the shape of a picture."""
        return (self.options.image_size, self.options.image_size, 3)

    def load(self, on_progress: Progress) -> Examples:
        """Return the pictures."""
        options = self.options
        return case_study.pictures(options.data, options.image_size, options.seed, on_progress)

    def size(self) -> str:
        """Return the size of a picture."""
        return f"{self.options.image_size} px"

    def searched(self, examples: Examples) -> Searched:
        """Return model and pictures, which agree."""
        return Searched(self.spec(), examples)


# Of a compiled model the first of these is scored, in this order.
FIRST = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy")
ONE_ROW = 2  # axes of an output of one row per example


def made(spec: ModelSpec) -> Any:
    """Make the model once, with the default values of its hyperparameters."""
    import keras

    from kbatch.models.maker import ModelMaker

    try:
        maker = ModelMaker.of(spec)
        model = maker.raw(maker.own_policy)
    except KbatchError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        raise ModelError(
            "A model must be made",
            " ".join(f"{type(error).__name__}: {error}".split()),
            "Call the function in Python to see where it fails",
        ) from error
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


def measured(model: Any, spec: ModelSpec) -> Measured:
    """Return what is known of the metrics and losses of a model."""
    from kbatch.models.compilation import CompileArguments
    from kbatch.training.metrics import Measured

    return Measured(model, CompileArguments(spec.loss, spec.metrics))


def wanted(of: Measured, form: str | None) -> Wanted:
    """Return the labels that a model can be trained with."""
    shapes = of.output_shapes
    is_row = len(shapes) == 1 and len(shapes[0]) == ONE_ROW
    return Wanted(of.known_loss(), shapes[0][1] if is_row else None, form)


def with_metric(spec: ModelSpec, metric: str | None, loss: str | None) -> ModelSpec:
    """Return the specification of a model that is not compiled, with the metric to score it by."""
    if metric is None:
        return dataclasses.replace(spec, metrics=["accuracy"] if loss in OF_CLASSES else None)
    return dataclasses.replace(spec, metrics=None if _bare(metric) == "loss" else [_bare(metric)])


def scored(of: Measured, metric: str | None) -> str:
    """Return the metric to score by, such as `"val_accuracy"`."""
    from kbatch.training.metrics import exactly

    if metric is None:
        own = [name for name in of.names if name != "loss"]
        first = [name for name in own if exactly(name) in FIRST]
        return f"val_{[*first, *own, 'loss'][0]}"
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
