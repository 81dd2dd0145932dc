"""Coupling within a batch: outputs of a model, and losses, that take examples together.

A loss that is a mean on the first batches need not be one everywhere: a bound, or a count of rare
labels, shows only where the parts of a batch differ. So own losses are tried on labels and outputs
that differ as much as they can.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.streams import Source
from kbatch.models import accumulation
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import compiled_by_user

OUTPUT_ROUNDING = 1e-4  # relative to the largest output; convolutions differ with the batch size
NEAREST, FURTHEST = -3.0, 1.5  # powers of ten by which outputs are scaled over a batch; by hand
MOST_LABELS = 64  # batches of a dataset whose labels are looked through
LIBRARIES = ("keras.", "keras_hub.")


def coupled_outputs(model: keras.Model, x: Any, parts: list[Any]) -> str:
    """Return how the outputs of examples depend on the others of their batch; empty if not at all.

    Batch normalization, which is known to, and dropout must behave as in inference.
    """
    if not _may_couple(model):
        return ""
    kept = accumulation.state_but_seeds(model)
    modes = (False, True) if own_layers(model) else (False,)
    try:
        differ = any(_differ(model, x, parts, kept, training) for training in modes)
    finally:
        accumulation.put_back_state(kept)
        keras_private.clear_losses(model)
    if not differ:
        return ""
    own = ", ".join(own_layers(model))
    return f"layers of its own, {own}," if own else "operations over the examples"


def _may_couple(model: keras.Model) -> bool:
    """Whether a model has layers that are not of Keras, or operations between its layers."""
    graphs = [model, *keras_private.flatten_layers(model)]
    operations = [each for graph in graphs for each in getattr(graph, "operations", ())]
    return bool(own_layers(model)) or not all(
        isinstance(each, keras.layers.Layer) for each in operations
    )


def own_layers(model: keras.Model) -> list[str]:
    """Return the classes of layers that are not of Keras, and functions in `Lambda` layers."""
    layers = [model, *keras_private.flatten_layers(model)]
    return list(dict.fromkeys(type(each).__name__ for each in layers if _is_own(each)))


def own_loss(model: keras.Model) -> bool:
    """Return whether a loss of a model is not one of Keras'."""
    if type(model).compute_loss is not keras.Model.compute_loss:
        return True
    losses = keras.tree.flatten(compiled_by_user(model).get("loss"))
    return any(not _is_of_keras(each) for each in losses if each is not None)


def outputs_apart(outputs: Any, labels: Any) -> Iterator[Any]:
    """Give outputs that differ over a batch: by their size, and by their distance to the labels."""
    flat, flat_labels = keras.tree.flatten(outputs), keras.tree.flatten(labels)
    yield outputs
    yield keras.tree.pack_sequence_as(outputs, [_scaled(each, None) for each in flat])
    pairs = list(itertools.zip_longest(flat, flat_labels))
    if len(flat) == len(flat_labels) and all(_are_alike(*pair) for pair in pairs):
        yield keras.tree.pack_sequence_as(outputs, [_scaled(*pair) for pair in pairs])


def labels_apart(source: Source, size: int) -> Any:
    """Return labels of a batch of which the first part has the lowest, the last the highest."""
    own = source.labels()
    if own is not None:
        return tf.convert_to_tensor(_extremes(own, size))
    batches = source.stream(size, 0).take(min(MOST_LABELS, max(source.examples // size, 1)))
    labels = [keras.utils.unpack_x_y_sample_weight(tuple(batch))[1] for batch in batches]
    if not labels or labels[0] is None:
        return None

    def join(*leaves: Any) -> Any:
        if len({tuple(leaf.shape[1:]) for leaf in leaves}) > 1:  # padded for each batch
            return leaves[0]
        return tf.convert_to_tensor(_extremes(np.concatenate(leaves), size))

    return keras.tree.map_structure(join, *labels)


def _extremes(labels: np.ndarray, size: int) -> np.ndarray:
    """Labels in their order: the lowest, some between, and the highest."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "biuf":
        return labels[:size]
    key = labels.reshape(len(labels), -1).astype("float64").mean(axis=1)
    order = np.argsort(key, kind="stable")
    ends = size // 4
    between = np.linspace(ends, len(order) - ends - 1, size - 2 * ends).astype(int)
    return labels[np.concatenate([order[:ends], order[between], order[len(order) - ends :]])]


def _scaled(outputs: Any, labels: Any) -> Any:
    """Outputs whose size, or whose distance to labels, grows over the batch."""
    if not outputs.dtype.is_floating:
        return outputs
    factors = np.logspace(NEAREST, FURTHEST, len(outputs))
    shaped = factors.reshape(-1, *[1] * (len(outputs.shape) - 1))
    factor = tf.cast(shaped, outputs.dtype)
    begin = tf.zeros_like(outputs) if labels is None else tf.cast(labels, outputs.dtype)
    scaled = begin + factor * (outputs - begin)
    mask = keras_private.mask_of(outputs)
    if mask is not None:
        keras_private.set_mask(scaled, mask)
    return scaled


def _are_alike(outputs: Any, labels: Any) -> bool:
    return labels is not None and tuple(outputs.shape) == tuple(labels.shape)


def _differ(model: keras.Model, x: Any, parts: list[Any], kept: Any, training: bool) -> bool:
    """Whether the outputs of parts are not those of the whole, beyond rounding and draws."""

    def outputs(inputs: Any) -> list[np.ndarray]:
        accumulation.put_back_state(kept)
        return [np.asarray(each) for each in _flat(model(inputs, training=training))]

    whole = outputs(x)
    try:
        of_parts = [np.concatenate(each) for each in zip(*map(outputs, parts), strict=True)]
    except Exception:  # of any kind: the model cannot take a part, or its shapes depend on it
        return True
    if any(one.shape != other.shape for one, other in zip(whole, of_parts, strict=True)):
        return True
    scale = max((float(np.max(np.abs(each), initial=0.0)) for each in whole), default=0.0)
    if not np.isfinite(scale):
        return False
    apart = _distance(whole, of_parts)
    return apart > OUTPUT_ROUNDING * scale and apart > 4 * _distance(whole, outputs(x))


def _flat(outputs: Any) -> list[Any]:
    return [each for each in keras.tree.flatten(outputs) if each.dtype.is_floating]


def _distance(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    pairs = zip(first, second, strict=True)
    return max((float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs), default=0.0)


def _is_own(layer: Any) -> bool:
    kind = type(layer)
    return isinstance(layer, keras.layers.Lambda) or not kind.__module__.startswith(LIBRARIES)


def _is_of_keras(loss: Any) -> bool:
    """Whether a loss is a name, or a function or an object of Keras' own code."""
    if isinstance(loss, str):
        return True
    parts = [each for each in (loss, getattr(loss, "fn", None)) if each is not None]
    modules = [str(getattr(each, "__module__", "")) for each in parts]
    return all(name.startswith("keras.") for name in modules)
