"""The driver's tuners, the repair of their files, and the user's own model."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
from pathlib import Path
from typing import Any

import keras_tuner

from kbatch.data.sources import OF_CLASSES, Wanted
from kbatch.driver.options import PROJECT
from kbatch.errors import KbatchError, ModelError, SearchError
from kbatch.hypermodel import HyperModel, objective
from kbatch.model_spec import ModelSpec
from kbatch.records import files
from kbatch.training.metrics import Measured, exactly
from kbatch.tuner import Tuner, go_through

# The Gaussian process takes about a third of the variance of normalized scores for noise. Of 69
# recipes of the case study, each trained with two seeds (photographs, 20 s, one core), the rankings
# of the two seeds correlate at 0.5 only.
SCORE_NOISE = 0.3


def tuner_of(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> keras_tuner.Tuner:
    """Return a tuner over the hypermodel, in the folder `search`."""
    if kind == "kbatch":
        with contextlib.redirect_stdout(io.StringIO()):  # as below
            return Tuner(hypermodel, directory=str(folder), project_name=PROJECT, tuner_seed=seed)
    common = {
        "objective": objective(),
        "max_trials": trials,
        "directory": str(folder),
        "project_name": PROJECT,
    }
    common["seed"] = seed + 1  # KerasTuner takes 0 for no seed at all
    with contextlib.redirect_stdout(io.StringIO()):  # "Reloading Tuner from …"
        if kind == "bayesian":
            return keras_tuner.BayesianOptimization(
                hypermodel, num_initial_points=max(3, trials // 3), alpha=SCORE_NOISE, **common
            )
        return {"random": keras_tuner.RandomSearch, "grid": keras_tuner.GridSearch}[kind](
            hypermodel, **common
        )


def ending(kind: str, trials: int) -> dict[str, int]:
    """Return the arguments that end the search of a tuner: stock ones were told when made."""
    return {"max_trials": trials} if kind == "kbatch" else {}


def opened(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> tuple[keras_tuner.Tuner, Path | None]:
    """Return the tuner, and the folder that broken files of KerasTuner were moved to, or `None`.

    KerasTuner writes its files in place, so a process that is killed may leave half a file, on
    which it cannot start. The records and the kept weights stay. With the same seed it draws the
    same trials again, which the records answer.
    """
    project = folder / PROJECT
    aside = None if files.first_broken(project) is None else set_aside(project)
    if aside is None and files.found(project):
        # KerasTuner raises errors of any kind on states that it did not write.
        with contextlib.suppress(Exception):
            tuner = tuner_of(kind, hypermodel, trials, folder, seed)
            go_through(tuner.oracle, hypermodel)
            return tuner, None
        aside = set_aside(project)
    return tuner_of(kind, hypermodel, trials, folder, seed), aside


def set_aside(project: Path) -> Path:
    """Move KerasTuner's own files out of the way."""
    name = f"set-aside-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    aside, number = project / name, 0
    while aside.exists():
        number += 1
        aside = project / f"{name}-{number}"
    try:
        for file in files.found(project):
            target = aside / file.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    except OSError as error:
        raise files.refusal(error) from error
    return aside


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
