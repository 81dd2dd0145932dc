"""Composite: the inside of a layer that does nothing but call others, as a graph of its calls."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import keras_private

# by layer: the shape and type of its input, and the graph; `None` for a layer that has none
_known: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def inside_of(node: Any) -> tuple[Any, Callable[..., list[Any]]] | None:
    """Return a Functional model of what a layer does in training, and what prepares its inputs.

    The encoder of a vision transformer is such a layer. Its `call` is run once on symbolic
    tensors. It must have no variables, losses and random numbers besides those of the layers in it,
    since only their calls are seen. `None` where that is not known.
    """
    layer = node.operation
    if not _may_be_unfolded(layer) or not _gets_tensors_only(node):
        return None
    places = _places(node)
    inner = tuple(id(each) for each in keras_private.flatten_layers(layer))
    shapes = tuple((tuple(each.shape), str(each.dtype)) for each in node.input_tensors)
    names = tuple(node.arguments.kwargs)
    kind = (shapes, places, names, layer.compute_dtype, inner)
    if layer not in _known or _known[layer][0] != kind:
        _known[layer] = kind, _traced(node)
    graph = _known[layer][1]

    def enter(*args: Any, training: Any = None, **kwargs: Any) -> list[Any]:
        given = keras.tree.flatten((args, kwargs))
        return [_cast(layer, given[place]) for place in places]

    return None if graph is None else (graph, enter)


def _gets_tensors_only(node: Any) -> bool:
    """Whether a call gets tensors without masks, and besides `training` nothing else."""
    given = keras.tree.flatten((node.arguments.args, _without_training(node)))
    tensors = {id(tensor) for tensor in node.input_tensors}
    masked = any(keras_private.mask_of(tensor) is not None for tensor in node.input_tensors)
    return not masked and all(each is None or id(each) in tensors for each in given)


def _without_training(node: Any) -> dict[str, Any]:
    kwargs = node.arguments.kwargs
    return {name: value for name, value in kwargs.items() if name != "training"}


def _places(node: Any) -> tuple[int, ...]:
    """Where each tensor of a call stands first among its arguments, laid flat."""
    leaves = keras.tree.flatten((node.arguments.args, _without_training(node)))
    given = [id(leaf) for leaf in leaves]
    return tuple(dict.fromkeys(given.index(id(tensor)) for tensor in node.input_tensors))


def _cast(layer: Any, inputs: Any) -> Any:
    """Return an input of a layer as its `call` gets it."""
    return layer.dtype_policy.convert_input(inputs, layer.autocast, layer.input_dtype)


def _may_be_unfolded(layer: Any) -> bool:
    if not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.Model):
        return False
    if type(layer).__module__.partition(".")[0] == "keras" or "call" in vars(layer):
        return False
    return (
        layer.built
        and len(keras_private.flatten_layers(layer)) > 2  # itself and two others
        and not keras_private.own_state(layer)
        and layer.activity_regularizer is None
    )


def _traced(node: Any) -> Any:
    """The graph of a layer's `call`; `None` if it cannot be run on symbolic tensors."""
    layer = node.operation
    training = {"training": True} if _takes_training(layer) else {}
    losses = set(keras_private.loss_ids(layer))
    try:
        inputs: dict[int, Any] = {}
        for tensor in node.input_tensors:
            inputs.setdefault(id(tensor), _input(layer, tensor, len(inputs)))
        args, kwargs = keras.tree.map_structure(
            lambda each: inputs.get(id(each), each), (node.arguments.args, _without_training(node))
        )
        with keras_private.called_in_training(layer):
            outputs = layer.call(*args, **kwargs, **training)
        graph = keras.Model(list(inputs.values()), outputs, name=f"{layer.name}_inside")
    except Exception:  # a `call` in TensorFlow's own functions, or of any other kind
        return None
    if set(keras_private.loss_ids(layer)) != losses:
        keras_private.clear_losses(layer)
        return None
    nodes = itertools.chain(*keras_private.nodes_by_depth(graph).values())
    is_known = all(_can_be_repeated(node) for node in nodes) and _runs(graph)
    return graph if is_known else None


def _input(layer: Any, tensor: Any, number: int) -> Any:
    """A symbolic tensor for one that a layer is called on, of the type that its `call` gets."""
    dtype = tensor.dtype
    if layer.autocast and keras.backend.is_float_dtype(dtype):
        dtype = layer.compute_dtype
    return keras.Input(batch_shape=tensor.shape, dtype=dtype, name=f"{layer.name}_input_{number}")


def _runs(graph: Any) -> bool:
    """Whether the calls can be run on tensors.

    They cannot where one was told a size that is open, as `ops.reshape(x, (ops.shape(x)[0], -1))`.
    """
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in graph.inputs]
    call = tf.function(lambda *tensors: graph(list(tensors), training=True), autograph=False)
    try:
        with keras.StatelessScope(collect_losses=True):
            call.get_concrete_function(*specs)
    except Exception:  # whatever the operation raises
        return False
    return True


def _can_be_repeated(node: Any) -> bool:
    """Whether a call is the same when its operation is called by itself, in training.

    It is not with values that do not come from the input, such as random ones. Nor if the layer
    says `training` itself, as for a normalization that is frozen: Keras overrules that in a graph.
    `None` is said too: a layer that gets it does as it is told by the default of its `call`.
    """
    leaves = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    if any(keras.ops.is_tensor(leaf) for leaf in leaves):
        return False
    if not isinstance(node.operation, keras.layers.Layer):
        return True
    said = [leaf for leaf in keras.tree.flatten(node.arguments.args) if isinstance(leaf, bool)]
    trains = node.arguments.kwargs.get("training") or not _takes_training(node.operation)
    return not said and trains


def _takes_training(layer: Any) -> bool:
    return "training" in inspect.signature(layer.call).parameters
