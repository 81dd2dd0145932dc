"""The answer of `kbatch search`: the driver, on a model and on data of the user's own."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.cli.search_options import SearchOptions
from kbatch.data import sources
from kbatch.data.examples import Examples, Progress, shares_of
from kbatch.data.pictures import IMAGE_SIZE
from kbatch.driver import driver
from kbatch.driver.task import Searched
from kbatch.errors import DataError, ModelError
from kbatch.model_spec import ModelSpec, values_of_text
from kbatch.runtime import signals, users_code
from kbatch.runtime.nvidia import may_use_card
from kbatch.runtime.users_code import Imported, imported

if TYPE_CHECKING:
    from rich.console import Console

    from kbatch.data.sources import Source

NAMED = ("cnn", "small-resnet")  # models of the case study


def answer(options: SearchOptions, console: Console) -> None:
    """Search, confirm and report."""
    driver.run(*task_of(options), console)


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


def model(name: str, image_size: int, classes: int) -> Any:
    """Return a model of the case study's, compiled for a number of classes."""
    from kbatch.case_study.models import MODELS

    made = MODELS[name](image_size, classes)
    loss = "binary_crossentropy" if classes == 2 else "sparse_categorical_crossentropy"
    made.compile("adam", loss, metrics=["accuracy"])
    return made


@dataclass(frozen=True)
class OwnTask:
    """The task of `kbatch search`; see `kbatch.driver.task.Task`.

    Attributes:
        options: The options of the command.
        build: The user's function; `None` for a model of the case study's.
        source: The examples, not read yet.
    """

    options: SearchOptions
    build: Imported | None
    source: Source

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
        return functools.partial(model, self.options.model, size, len(self.source.classes))

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
        from kbatch.driver import tuners

        options, spec = self.options, self.spec()
        if self.build is not None:
            spec = dataclasses.replace(spec, build=_loaded(self.build))
        made = tuners.made(spec)
        tuners.check_loss(made, options.loss)
        of = tuners.measured(made, spec)
        if not made.compiled:
            spec = tuners.with_metric(spec, options.metric, of.known_loss())
            of = tuners.measured(made, spec)
        metric = tuners.scored(of, options.metric)
        fitting, words = sources.fitted(examples, tuners.wanted(of, options.labels))
        return Searched(
            spec,
            fitting,
            metric,
            options.direction,
            options.chance,
            (("classes", list(examples.classes)), ("split", options.split)),
            f"Model: {made.name}, {made.count_params():,} weights; labels {words}; "
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
