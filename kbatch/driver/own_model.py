"""A model of the user's: its loss, its outputs and the metric that it is scored by."""

from __future__ import annotations

import dataclasses
from typing import Any

from kbatch.data.sources import OF_CLASSES, Wanted
from kbatch.errors import KbatchError, ModelError, SearchError
from kbatch.model_spec import ModelSpec
from kbatch.training.metrics import Measured, exactly

# Of a compiled model the first of these is scored, in this order.
FIRST = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy")
ONE_ROW = 2  # axes of an output of one row per example


def made(spec: ModelSpec) -> Any:
    """Make the model once, with the default values of its hyperparameters.

    Args:
        spec: `ModelSpec` of the model.

    Raises:
        ModelError: If the function fails, or returns no model.
    """
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
    """Refuse a model without a loss, one with two, and a loss that Keras does not know.

    Args:
        model: `keras.Model`.
        loss: String, `--loss`. Optional.

    Raises:
        ModelError: If there is not one loss that Keras knows.
    """
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
    """Return the labels that a model can be trained with.

    Args:
        of: Metrics and losses of the model.
        form: `--labels`. Optional.
    """
    shapes = of.output_shapes
    is_row = len(shapes) == 1 and len(shapes[0]) == ONE_ROW
    return Wanted(of.known_loss(), shapes[0][1] if is_row else None, form)


def with_metric(spec: ModelSpec, metric: str | None, loss: str | None) -> ModelSpec:
    """Return the specification of a model that is not compiled, with the metric to score it by.

    Args:
        spec: `ModelSpec` of the model.
        metric: String, `--metric`; by default the accuracy for a loss of classes, else the loss.
        loss: String, Keras' own name of the loss.
    """
    if metric is None:
        return dataclasses.replace(spec, metrics=["accuracy"] if loss in OF_CLASSES else None)
    return dataclasses.replace(spec, metrics=None if _bare(metric) == "loss" else [_bare(metric)])


def scored(of: Measured, metric: str | None) -> str:
    """Return the metric to score by, such as `"val_accuracy"`.

    Args:
        of: Metrics and losses of the model.
        metric: String, `--metric`, with or without `val_`; by default an accuracy of the model,
            else its first metric, else its loss.

    Raises:
        SearchError: If the model does not measure it.
    """
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
