"""Model traits: what advice needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbatch.errors import ModelError

MOST_OF_HEAD = 3  # layers: two dense ones and a normalization, say; chosen by hand


@dataclass(frozen=True)
class ModelTraits:
    """What advice needs to know of a model.

    Attributes:
        batch_normalizations: Integer, trainable `BatchNormalization` layers that measure the
            examples of one pass on one device.
        synchronized: Integer, those that measure the examples of a pass on all devices.
        momentum: Float, the largest momentum of the moving statistics of all these; 0 without any.
        frozen: Integer, layers with weights that are not trained.
        layers: Integer, layers with weights.
        optimizer: String, name of the optimizer that the model is compiled with, in lower case;
            empty without one.
        learning_rate: Float, its constant learning rate, or `None`.
        moved: Boolean, whether its new optimizer finds statistics of an earlier training in a
            `BatchNormalization`.
        published: String, name of the model of `keras.applications` that it is or holds; empty
            without one.
    """

    batch_normalizations: int = 0
    synchronized: int = 0
    momentum: float = 0.0
    frozen: int = 0
    layers: int = 0
    optimizer: str = ""
    learning_rate: float | None = None
    moved: bool = False
    published: str = ""

    @property
    def trains_head_only(self) -> bool:
        """Boolean, whether only a few layers on top of frozen ones are trained."""
        trained = self.layers - self.frozen
        return trained <= MOST_OF_HEAD and trained < self.frozen


def traits_of(model: Any) -> ModelTraits:
    """Read the traits of a model.

    Args:
        model: `keras.Model`; layers without weights yet are counted as far as they are known.

    Raises:
        ModelError: If it is not a model.
    """
    import keras

    from kbatch.models.optimizers import learning_rate_of
    from kbatch.runtime.keras_private import flatten_layers

    if not isinstance(model, keras.Model):
        raise ModelError(
            "`model` must be a keras.Model, or None",
            type(model).__name__,
            "Pass build(), not build",
        )
    layers = [layer for layer in flatten_layers(model) if _has_own_weights(layer)]
    measuring = [
        layer
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    together = sum(bool(getattr(layer, "synchronized", False)) for layer in measuring)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return ModelTraits(
        batch_normalizations=len(measuring) - together,
        synchronized=together,
        momentum=max((float(layer.momentum) for layer in measuring), default=0.0),
        frozen=sum(not layer.trainable for layer in layers),
        layers=len(layers),
        optimizer="" if inner is None else type(inner).__name__.lower(),
        learning_rate=None if inner is None else learning_rate_of(inner),
        moved=not _has_trained(inner) and any(map(_is_moved, layers)),
        published=_published_in(model),
    )


def _has_trained(optimizer: Any) -> bool:
    return optimizer is not None and int(optimizer.iterations) > 0


def _is_moved(layer: Any) -> bool:
    """Whether a layer holds statistics that are not those of a new one."""
    import keras
    import numpy as np

    normalizes = isinstance(layer, keras.layers.BatchNormalization) and layer.built
    return normalizes and bool(np.any(np.asarray(layer.moving_mean) != 0))


def _published_in(model: Any) -> str:
    """The name of the first model of `keras.applications` in a model, by the names of models."""
    import keras

    from kbatch.runtime.keras_private import flatten_layers

    known = [name.lower() for name in dir(keras.applications) if name[0].isupper()]
    for layer in flatten_layers(model):
        own = "".join(filter(str.isalnum, layer.name.lower()))
        if isinstance(layer, keras.Model) and own.startswith(tuple(known)):
            return str(layer.name)
    return ""


def _has_own_weights(layer: Any) -> bool:
    """Whether a layer has weights that are not those of a layer in it, or is a BatchNormalization.

    A random generator's seed is no weight.
    """
    import keras

    if isinstance(layer, keras.layers.BatchNormalization):
        return True
    inner = {id(each) for child in _children(layer) for each in child.weights}
    return any(id(weight) not in inner for weight in layer.weights)


def _children(layer: Any) -> list[Any]:
    from kbatch.runtime.keras_private import flatten_layers

    return [each for each in flatten_layers(layer) if each is not layer]
