"""The constant model: what a model's own metrics and losses give for one and the same answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.models.compilation import copied_metric, fresh_names, snake_case
from kbatch.runtime import keras_private
from kbatch.training.held_out_labels import Part
from kbatch.training.metrics import LOSS, SHARES
from kbatch.training.model_outputs import Outputs

Answers = Sequence[np.ndarray]


class ConstantModel:
    """A model that gives the same answer to every example, compiled as the user's model is.

    Args:
        compiled: Mapping of `loss`, `loss_weights`, `metrics` and `weighted_metrics`.
        outputs: The outputs of the user's model.
        first: The first validation batch, from whose shapes Keras chooses what `"accuracy"` is.
    """

    def __init__(self, compiled: Mapping[str, Any], outputs: Outputs, first: Part) -> None:
        self._outputs = outputs
        # Traced, since some metrics take thirty times as long eagerly. The user's own may be of
        # Python, and a mask is not handed to a trace.
        self._updates: dict[str, Any] = {}
        with fresh_names(), tf.device("/CPU:0"):
            self._model = keras.Model(name="constant")
            if outputs.names:
                self._model.output_names = list(outputs.names)
            kinds = ("metrics", "weighted_metrics")
            own = {kind: copied_metric(compiled.get(kind)) for kind in kinds}
            losses = {name: compiled.get(name) for name in ("loss", "loss_weights")}
            self._model.compile(**losses, **own, jit_compile=False)
            self._loss: Any = None if compiled.get("loss") is None else self._loss_of(first)
            self.metrics = self._metrics_of(first) if any(own.values()) else {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of metrics and losses in Keras' logs."""
        if self._loss is None:
            return tuple(self.metrics)
        return (*self.metrics, LOSS, *(metric.name for metric in self._loss.metrics))

    def is_loss(self, name: str) -> bool:
        """Return whether a name is that of the loss, or of the loss of one output."""
        return name in self.names and name not in self.metrics

    def changes_in_steps(self, name: str) -> bool:
        """Return whether a metric is one of Keras' own that ranks or counts answers."""
        metric = self.metrics[name][0] if name in self.metrics else None
        of_keras = type(metric).__module__.startswith("keras.")
        return of_keras and snake_case(type(metric).__name__) in SHARES

    def places(self, name: str) -> list[int]:
        """Return the positions of the outputs that a metric or loss depends on."""
        if name in self.metrics:
            return [self.metrics[name][1]]
        own = [place for place, each in enumerate(self._outputs.names) if name == f"{each}_{LOSS}"]
        return own or list(range(len(self._outputs.shapes)))

    def value(self, name: str, answers: Answers, parts: Sequence[Part]) -> float:
        """Return a metric or loss of constant answers.

        Args:
            name: String, as in Keras' logs, without `val_`.
            answers: Array for each output, of its shape or of that of its last axes.
            parts: The validation examples, batch by batch.

        Raises:
            Exception: Whatever a metric or loss raises, which may be the user's own.
        """
        with tf.device("/CPU:0"):
            if name in self.metrics:
                return self._metric(name, answers, parts)
            return self._mean_loss(name, answers, parts)

    def _metric(self, name: str, answers: Answers, parts: Sequence[Part]) -> float:
        metric, place, weighted = self.metrics[name]
        metric.reset_state()
        update = metric.update_state
        if type(metric).__module__.startswith("keras.") and not any(
            each.masks[place] is not None for each in parts
        ):
            update = self._updates.setdefault(name, tf.function(update, reduce_retracing=True))
        for part in parts:
            given = [part.weights[place]] if weighted and part.weights[place] is not None else []
            prediction = self._prediction(answers[place], part, place)
            update(tf.constant(part.labels[place]), prediction, *map(_tensor, given))
        result = np.asarray(metric.result())
        metric.reset_state()
        if result.size != 1:
            raise ValueError(f"{name} is not one number")
        return float(result.reshape(()))

    def _mean_loss(self, name: str, answers: Answers, parts: Sequence[Part]) -> float:
        """The mean over the examples of the loss of each batch, as `evaluate` gives it."""
        self._reset()
        total, examples = 0.0, 0
        for part in parts:
            total += float(self._call_loss(answers, part)) * part.examples
            examples += part.examples
        own = {metric.name: metric for metric in self._loss.metrics}
        return total / examples if name == LOSS else float(own[name].result())

    def _call_loss(self, answers: Answers, part: Part) -> Any:
        predictions = [
            self._prediction(answer, part, place) for place, answer in enumerate(answers)
        ]
        weights = None
        if any(each is not None for each in part.weights):
            weights = self._outputs.packed([_tensor(each) for each in part.weights])
        labels = self._outputs.packed([_tensor(each) for each in part.labels])
        return self._loss(labels, self._outputs.packed(predictions), weights)

    def _loss_of(self, first: Part) -> Any:
        self._loss = keras_private.compile_loss(self._model)
        self._call_loss(self._zeros(first), first)
        return self._loss

    def _metrics_of(self, first: Part) -> dict[str, tuple[Any, int, bool]]:
        predictions = [
            self._prediction(answer, first, place)
            for place, answer in enumerate(self._zeros(first))
        ]
        labels = self._outputs.packed([_tensor(each) for each in first.labels])
        self._model.compute_metrics(None, labels, self._outputs.packed(predictions), None)
        found = keras_private.compiled_metrics(self._model)
        return {name: (metric, place, weighted) for name, metric, place, weighted in found}

    def _zeros(self, first: Part) -> list[np.ndarray]:
        return [np.zeros(()) for _ in first.labels]

    def _reset(self) -> None:
        for metric in self._loss.metrics:
            metric.reset_state()

    def _prediction(self, answer: np.ndarray, part: Part, place: int) -> Any:
        shape = shape_of(self._outputs.shapes[place], part.labels[place])
        prediction = tf.broadcast_to(tf.constant(answer, "float32"), (part.examples, *shape))
        if part.masks[place] is not None:
            keras_private.set_mask(prediction, _tensor(part.masks[place]))
        return prediction


def shape_of(shape: Sequence[int | None], labels: np.ndarray) -> tuple[int, ...]:
    """Return an output's shape for these labels, whose lengths stand for those that vary.

    Raises:
        ValueError: If the labels have no such axis.

    Example:
    >>> shape_of((None, 5), np.zeros((8, 3)))
    (3, 5)
    """
    known = []
    for axis, length in enumerate(shape, start=1):
        if length is None and axis >= labels.ndim:
            raise ValueError(f"labels of shape {labels.shape} for outputs of shape {shape}")
        known.append(labels.shape[axis] if length is None else length)
    return tuple(known)


def _tensor(array: Any) -> Any:
    return None if array is None else tf.constant(array)
