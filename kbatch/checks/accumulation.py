"""The check of accumulation: the loss of a batch is the weighted mean over its parts.

Where it is not, the loss couples the examples of a batch (Dice, contrastive losses), sums them, or
divides by a count of its own. Passes then take the loss once, of the outputs of all of them; see
`kbatch.models.exact_accumulation`. What reaches past the outputs is refused.

A loss that is a mean on the first batches need not be one everywhere: a bound, or a count of rare
labels, shows only where the parts of a batch differ. So own losses are tried on labels and outputs
that differ as much as they can.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.checks.check import Check, Finding, Subject
from kbatch.checks.state import OUTPUT_ROUNDING, carries, largest, own_layers
from kbatch.data.streams import Source, weighed
from kbatch.errors import ModelError
from kbatch.models import accumulation
from kbatch.models.losses import loss_count, loss_counts
from kbatch.recipe import Recipe
from kbatch.recipe_words import EXACT, MEAN, measures_noise
from kbatch.runtime import device, keras_private
from kbatch.runtime.keras_private import compiled_by_user, replaced_method

NAME = "accumulation"
PARTS, BATCHES = 4, 2  # parts that a batch is taken in, and batches that are looked at
DRAWS = 6  # of a model that draws at random, which is compared within its noise
# Rounding, relative to the largest: of the loss, a sum over all outputs, and of its gradient by
# each output. Chosen by hand, ten times what means over 32 examples were seen to differ by.
LOSS_ROUNDING = {"float64": 1e-12, "float32": 1e-5}
GRADIENT_ROUNDING = {"float64": 1e-12, "float32": 3e-6}
NEAREST, FURTHEST = -3.0, 1.5  # powers of ten by which outputs are scaled over a batch; by hand
MOST_LABELS = 64  # batches of a dataset whose labels are looked through
Batch = tuple[Any, ...]


@dataclass(frozen=True)
class Compared:
    """A number or a gradient of whole batches beside that of their parts."""

    difference: float  # the largest, relative to the largest number of both
    noise: float = 0.0  # the same between two computations of the whole batch

    def agrees(self, rounding: float) -> bool:
        """Whether the parts make the whole, as far as rounding and random draws let one see."""
        return self.difference <= max(rounding, 4 * self.noise)


def look(subject: Subject) -> Finding | None:
    """Compare the loss of batches with the weighted mean over their parts."""
    devices = device.replicas()
    if not subject.accumulates and devices == 1:
        return None
    smoothing = max(each.label_smoothing for each in subject.recipes)
    plain = in_one_pass(dataclasses.replace(subject.recipes[0], label_smoothing=smoothing))
    model = subject.make(plain)
    batches = list(_batches(subject))
    differs = coupled(model, batches) or _coupled_elsewhere(model, subject, batches[0])
    if not differs:
        return Finding(holds=True, facts={NAME: MEAN})
    by_noise = [each for each in subject.schedules if measures_noise(each)]
    if by_noise:
        raise ModelError(
            "A batch that grows by the noise scale must have a loss that is the mean over passes, "
            "between which the noise is measured",
            f"{differs}, batch_schedule={by_noise[0]!r}",
            "Take another schedule, such as exponential:8",
        )
    if devices > 1:
        raise ModelError(
            "A loss on several devices must be the mean over their parts of the batch",
            differs,
            "Leave out distribution_strategy",
        )
    return Finding(
        holds=False,
        sentence=f"the loss of a batch is not the mean over its passes ({differs}): recipes with "
        "passes take it once, of the outputs of all passes, which costs one more forward pass",
        facts={NAME: EXACT},
    )


def in_one_pass(recipe: Recipe) -> Recipe:
    """Return a recipe whose model shows the loss as it is: in single precision, in one pass."""
    return dataclasses.replace(
        recipe,
        micro_batch_size=None,
        batch_schedule="constant",
        policy="float32",
        recompute="none",
        augmentation="none",
        accumulation=MEAN,
        training="plain",
        jit_compile=False,
    )


def coupled(model: keras.Model, batches: Sequence[Batch]) -> str:
    """Return how the loss of a batch differs from the mean over its parts; empty if it does not."""
    if not model.built:
        model(batches[0][0], training=False)
    if type(model).train_step is not keras.Model.train_step:
        _check_own_step(model, batches)
        return ""
    with _quiet(model):
        words = coupled_outputs(model, batches[0][0], [part[0] for part in _parts(batches[0])])
    if words:
        raise _differently(f"{words} by which the output of an example depends on its batch")
    own = own_layers(model)
    if own and carries(model, batches[0][0]):
        raise _differently(f"what each pass leaves in layers of its own, {', '.join(own)},")
    _check_added_losses(model, batches)
    differing = [words for batch in batches if (words := _difference(model, batch))]
    return f"{_loss_words(model)}, {differing[0]}" if differing else ""


def _coupled_elsewhere(model: keras.Model, subject: Subject, batch: Batch) -> str:
    """How an own loss differs from the mean where labels and outputs of the parts differ."""
    if type(model).train_step is not keras.Model.train_step or not own_loss(model):
        return ""
    x, y, sample_weight = batch
    whole = model(x, training=False)
    keras_private.clear_losses(model)
    length = len(keras.tree.flatten(x)[0])
    for labels in (y, labels_apart(subject.training, length)):
        for outputs in outputs_apart(whole, labels):
            try:
                words = _difference(model, (x, labels, sample_weight), _parts(outputs))
            except Exception:  # a loss may take no such outputs, which no training has
                continue
            if words:
                return f"{_loss_words(model)}, {words} where examples differ"
    return ""


def settled(recipe: Recipe, accumulation: str) -> Recipe:
    """Return a recipe that accumulates as its loss needs; an exact one stays exact."""
    if accumulation == MEAN or recipe.accumulation_steps == 1:
        return recipe
    return dataclasses.replace(recipe, accumulation=accumulation)


def accumulation_of(facts: Mapping[str, Any]) -> str:
    """Return how passes accumulate, from the facts of all checks."""
    return str(facts.get(NAME, {}).get(NAME, MEAN))


def _batches(subject: Subject) -> Iterator[Batch]:
    """Give the first shuffled batches, whose sizes the parts divide."""
    training = subject.training
    size = max(subject.examples // PARTS, 1) * PARTS
    if training.examples < PARTS:
        size = training.examples
    for batch in weighed(training.stream(size, 0).take(BATCHES), subject.class_weight):
        yield keras.utils.unpack_x_y_sample_weight(tuple(batch))


def _parts(batch: Any) -> list[Any]:
    """The parts of a batch, or of any structure of tensors over its examples."""
    length = len(next(each for each in keras.tree.flatten(batch) if each is not None))
    size = max(length // PARTS, 1)
    return [
        _mapped(functools.partial(_rows, start=start, size=size), batch)
        for start in range(0, length, size)
    ]


def _rows(tensor: Any, start: int, size: int) -> Any:
    return tensor[start : start + size]


def _mapped(function: Callable[[Any], Any], structure: Any) -> Any:
    """A structure with a function applied to each tensor; `None` stands for a missing part."""
    return keras.tree.map_structure(
        lambda part: None if part is None else function(part), structure
    )


def _difference(model: keras.Model, batch: Batch, outputs: Sequence[Any] = ()) -> str:
    """How the loss of a batch differs from the weighted mean over its parts; empty if it agrees.

    The outputs are those of the parts, by default the model's own.
    """
    outputs = outputs or [model(part[0], training=False) for part in _parts(batch)]
    keras_private.clear_losses(model)  # those of layers are compared apart
    whole = [_loss_and_gradient(model, batch, _joined(outputs)) for _ in range(2)]
    parts = [
        _loss_and_gradient(model, part, each)
        for part, each in zip(_parts(batch), outputs, strict=True)
    ]
    weights = np.asarray(_weights(model, batch, outputs))
    shares = weights / weights.sum() if weights.sum() else np.zeros_like(weights)
    loss = sum(share * each[0] for share, each in zip(shares, parts, strict=True))
    gradients = [
        np.concatenate([share * each[1][place] for share, each in zip(shares, parts, strict=True)])
        for place in range(len(whole[0][1]))
    ]
    kind = "float64" if all(each.dtype == np.float64 for each in whole[0][1]) else "float32"
    of_loss = _compared([whole[0][0]], [loss], [whole[1][0]])
    of_gradient = _compared(whole[0][1], gradients, whole[1][1])
    if of_loss.noise > LOSS_ROUNDING[kind] or of_gradient.noise > GRADIENT_ROUNDING[kind]:
        return "which draws at random"
    if of_loss.difference > LOSS_ROUNDING[kind]:
        return f"{of_loss.difference:.2g} of it apart"
    if of_gradient.difference > GRADIENT_ROUNDING[kind]:
        return f"{of_gradient.difference:.2g} of its gradient by the outputs apart"
    return ""


def _loss_and_gradient(
    model: keras.Model, batch: Batch, outputs: Any
) -> tuple[Any, list[np.ndarray]]:
    """The loss of a batch with these outputs, and its gradient by each floating one."""
    x, y, sample_weight = batch
    # The logits of an activation are what a loss computes from.
    flat = keras.tree.flatten(outputs)
    flat += [each for each in map(keras_private.logits_of, flat) if each is not None]
    flat = [each for each in flat if each.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(flat)
        loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight)
    gradients = tape.gradient(loss, flat, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_sum(loss).numpy(), [np.asarray(each) for each in gradients]


def _joined(outputs: Sequence[Any]) -> Any:
    """The outputs of parts as those of the batch, with their masks."""

    def join(*parts: tf.Tensor) -> tf.Tensor:
        joined = tf.concat(parts, axis=0)
        masks = [keras_private.mask_of(part) for part in parts]
        if masks[0] is not None:
            keras_private.set_mask(joined, tf.concat(masks, axis=0))
        logits = [keras_private.logits_of(part) for part in parts]
        if logits[0] is not None:
            keras_private.set_logits(joined, tf.concat(logits, axis=0))
        return joined

    return keras.tree.map_structure(join, *outputs)


def _weights(model: keras.Model, batch: Batch, outputs: Sequence[Any]) -> list[float]:
    """By what each pass is weighted today: the count that its loss is divided by."""
    loss = compiled_by_user(model).get("loss")
    parts = _parts(batch)
    is_one = len(keras.tree.flatten(loss)) == 1 and len(keras.tree.flatten(outputs[0])) == 1
    if not is_one or not loss_counts(model, loss):
        return [float(len(keras.tree.flatten(part[0])[0])) for part in parts]
    counted = keras.tree.flatten(loss)[0]
    return [
        float(loss_count(counted, part[1], each, part[2]))
        for part, each in zip(parts, outputs, strict=True)
    ]


def _compared(
    whole: Sequence[Any], parts: Sequence[Any], again: Sequence[Any] | None = None
) -> Compared:
    """Compare arrays, relative to the largest number among all of them."""
    scale = max(map(largest, (*whole, *parts)), default=0.0)
    if not np.isfinite(scale):
        return Compared(np.inf)
    if not scale:
        return Compared(0.0)
    return Compared(_distance(whole, parts) / scale, _distance(whole, again or whole) / scale)


def _distance(first: Sequence[Any], second: Sequence[Any]) -> float:
    pairs = zip(first, second, strict=True)
    return max((largest(one - other) for one, other in pairs), default=0.0)


def _check_added_losses(model: keras.Model, batches: Sequence[Batch]) -> None:
    """Refuse losses of layers whose sum over a batch is not the mean over its parts."""
    for batch in batches:
        first = _added(model, batch[0])
        if not first:  # few models add losses, and each call of a large one takes its time
            continue
        draws = [first, *(_added(model, batch[0]) for _ in range(DRAWS - 1))]
        of_parts = [[_added(model, part[0]) for part in _parts(batch)] for _ in range(DRAWS)]
        for name, whole in draws[0].items():
            wholes = [each[name] for each in draws]
            means = [statistics.fmean(part.get(name, 0.0) for part in parts) for parts in of_parts]
            noise = statistics.stdev(wholes) + statistics.stdev(means)
            difference = abs(statistics.fmean(wholes) - statistics.fmean(means))
            scale = max(abs(whole), abs(means[0]))
            if difference > max(LOSS_ROUNDING["float32"] * scale, 2 * noise):
                raise _differently(
                    f"the loss that {name} adds ({whole:.4g} of a batch, {means[0]:.4g} as the "
                    "mean of its parts)"
                )


def _added(model: keras.Model, x: Any) -> dict[str, float]:
    """The losses that layers add for these examples, by the layer's name.

    Layers of Keras add the same in inference as in training.
    """
    if own_layers(model):
        kept = accumulation.state_but_seeds(model)
        with _quiet(model):
            model(x, training=True)
        accumulation.put_back_state(kept)
    else:
        model(x, training=False)
    return {
        layer.name: float(sum(tf.reduce_sum(loss) for loss in losses))
        for layer in keras_private.flatten_layers(model)
        if (losses := keras_private.added_losses(layer))
    }


def _check_own_step(model: keras.Model, batches: Sequence[Batch]) -> None:
    """Refuse an own `train_step` whose gradient of a batch is not the mean over its parts."""
    words = f"{type(model).__name__}.train_step"
    entered = accumulation.state_but_seeds(model)
    with _quiet(model):
        for batch in batches:
            given = tuple(each for each in batch if each is not None)
            wholes = [_gradients(model, given, entered) for _ in range(DRAWS)]
            parts = [_mean_gradients(model, given, entered) for _ in range(DRAWS)]
            if not wholes[0]:
                raise _differently(f"{words}, which updates weights past model.optimizer")
            compared = _compared(_means(wholes), _means(parts), _means(wholes[: DRAWS // 2]))
            if not compared.agrees(LOSS_ROUNDING["float32"]):
                raise _differently(
                    f"{words}, whose gradient of a batch differs by {compared.difference:.1%} "
                    "from the mean over its parts"
                )


@contextmanager
def _quiet(model: keras.Model) -> Iterator[None]:
    """Let batch normalization and dropout behave as in inference inside the `with` block."""
    layers = keras_private.flatten_layers(model)
    with ExitStack() as changed:
        for layer in layers:
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                layer.trainable = False
                changed.callback(setattr, layer, "trainable", True)
            elif isinstance(getattr(layer, "rate", None), float):
                changed.callback(setattr, layer, "rate", layer.rate)
                layer.rate = 0.0
        yield


def _gradients(model: keras.Model, batch: Batch, entered: Any) -> list[np.ndarray]:
    """The gradients that the model's own step hands to its optimizer."""
    accumulation.put_back_state(entered)
    caught: list[tuple[Any, Any]] = []

    def apply(grads: Iterable[Any], trainable_variables: Any = None) -> None:
        caught.extend(zip(grads, trainable_variables or model.trainable_variables, strict=False))

    with (
        replaced_method(model.optimizer, "apply_gradients", caught.extend),
        replaced_method(model.optimizer, "apply", apply),
    ):
        model.train_step(batch)
    found = {id(variable): gradient for gradient, variable in caught if gradient is not None}
    return [
        np.asarray(tf.convert_to_tensor(found[id(variable)]))
        for variable in model.trainable_variables
        if id(variable) in found
    ]


def _mean_gradients(model: keras.Model, batch: Batch, entered: Any) -> list[np.ndarray]:
    return _means([_gradients(model, part, entered) for part in _parts(batch)])


def _means(lists: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.mean(each, axis=0) for each in zip(*lists, strict=True)]


def _differently(what: str) -> ModelError:
    return ModelError(
        "A batch in several passes must have the gradient of the whole batch",
        f"a model that accumulates differently: {what}",
        "Use a batch that fits (no micro_batch_size, no max_batch)",
    )


def _loss_words(model: keras.Model) -> str:
    if type(model).compute_loss is not keras.Model.compute_loss:
        return f"{type(model).__name__}.compute_loss"
    parts = keras.tree.flatten(compiled_by_user(model).get("loss"))
    return ", ".join(dict.fromkeys(map(_name, parts)))


def _name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))


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
    scale = max(map(largest, whole), default=0.0)
    if not np.isfinite(scale):
        return False
    apart = _distance(whole, of_parts)
    return apart > OUTPUT_ROUNDING * scale and apart > 4 * _distance(whole, outputs(x))


def _flat(outputs: Any) -> list[Any]:
    return [each for each in keras.tree.flatten(outputs) if each.dtype.is_floating]


def _is_of_keras(loss: Any) -> bool:
    """Whether a loss is a name, or a function or an object of Keras' own code."""
    if isinstance(loss, str):
        return True
    parts = [each for each in (loss, getattr(loss, "fn", None)) if each is not None]
    modules = [str(getattr(each, "__module__", "")) for each in parts]
    return all(name.startswith("keras.") for name in modules)


ACCUMULATION = Check(
    NAME,
    "The loss of a batch is the weighted mean over its passes",
    "Passes take the loss once, of the outputs of all passes; what reaches past the outputs is "
    "refused",
    look,
)
