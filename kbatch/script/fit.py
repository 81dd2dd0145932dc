"""Fit: what a script copies: batches, callbacks, compilation, and pictures of the case study."""

from __future__ import annotations

import inspect
import re
import zipfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.order import shuffled_batches, shuffled_cuts
from kbatch.data.pictures import decode
from kbatch.rules.batch_schedule import at


class LastStep(keras.callbacks.Callback):
    """Ends the training after a number of steps of Keras."""

    def __init__(self, steps):
        super().__init__()
        self.steps_left = steps

    def on_train_batch_end(self, batch, logs=None):
        """Count a step."""
        self.steps_left -= 1
        if self.steps_left == 0:
            self.model.stop_training = True


class DrawsOfTraining(keras.callbacks.Callback):
    """Lets validation change no later random draw, as recurrent dropout of Keras does."""

    def on_test_begin(self, logs=None):
        """Note the states of the seeds."""
        others = {id(each) for each in [*self.model.weights, *self.model.metrics_variables]}
        seeds = [each for each in self.model.variables if id(each) not in others]
        self.states = [(each, each.numpy()) for each in seeds]

    def on_test_end(self, logs=None):
        """Put them back."""
        for seed, state in self.states:
            seed.assign(state)


class LearningRate(keras.callbacks.Callback):
    """Sets the learning rate of each weight update.

    A schedule of Keras would count passes, of which several may make one update.
    """

    def __init__(self, rate, passes):
        super().__init__()
        self.rate, self.passes, self.steps = rate, passes, 0

    def on_train_batch_begin(self, batch, logs=None):
        """Set the rate of the update that begins."""
        if self.steps % self.passes == 0:
            self.model.optimizer.learning_rate = self.rate(self.steps // self.passes)
        self.steps += 1


class MovingAverage(keras.callbacks.Callback):
    """Averages the weights over whole updates; validation and the end take the averages.

    The `use_ema` of Keras would average after each pass or inner step of an update.
    """

    def __init__(self, momentum, passes):
        super().__init__()
        self.momentum, self.passes, self.steps = momentum, passes, 0
        self.averages = self.own = None

    def averaged(self):
        """Return the weights to average: all but the scales of float8."""
        weights = self.model.trainable_variables
        return [each for each in weights if not getattr(each, "overwrite_with_gradient", False)]

    def weights(self):
        """Return copies of the present weights."""
        return [tf.identity(tf.cast(weight.value, "float32")) for weight in self.averaged()]

    def assign(self, values):
        """Give the model other weights."""
        for weight, value in zip(self.averaged(), values, strict=True):
            weight.assign(tf.cast(value, weight.dtype))

    def on_train_batch_end(self, batch, logs=None):
        """Take the weights of a whole update into the averages."""
        self.steps += 1
        if self.steps % self.passes:
            return
        if self.averages is None:
            self.averages = self.weights()
        self.averages = [
            average + (1 - self.momentum) * (weight - average)
            for average, weight in zip(self.averages, self.weights(), strict=True)
        ]

    def on_test_begin(self, logs=None):
        """Validate the averages."""
        if self.averages is not None:
            self.own = self.weights()
            self.assign(self.averages)

    def on_test_end(self, logs=None):
        """Train on with the weights themselves."""
        if self.own is not None:
            self.assign(self.own)

    def on_train_end(self, logs=None):
        """Keep the averages."""
        self.assign(self.averages)


KEPT_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")


def built(build_model, loss, metrics):
    """Return a new model, and the arguments to compile it with besides those of the recipe.

    A model that build_model() compiles keeps its own; loss and metrics are for one that it does
    not compile.
    """
    # the class that defines it, as Keras loads no compiled model where a subclass overrides it
    owner = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    said, compiled = {}, owner.compile

    def noted(model, *arguments, **named):
        found = inspect.signature(compiled).bind(model, *arguments, **named).arguments
        said[id(model)] = {name: found[name] for name in KEPT_ARGUMENTS if name in found}
        compiled(model, *arguments, **named)

    owner.compile = noted
    try:
        model = build_model()
    finally:
        owner.compile = compiled
    if id(model) in said:
        return model, said[id(model)]
    if model.compiled:
        raise ValueError(
            "A model must be compiled inside of build_model(), which keeps its loss and metrics. "
            "Received one that was compiled before. Build and compile a new one there."
        )
    if loss is None:
        raise ValueError(
            "A model that build_model() does not compile must be given a loss. Received none. "
            "Pass loss= and metrics= to train(), as the search had them."
        )
    return model, {"loss": loss, "metrics": metrics}


def check_passes(model, loss, x, y, sample_weight):
    """Stop where the mean over passes is not the mean over the whole batch, which kbatch takes."""
    losses = keras.tree.flatten(loss)
    masked = any(getattr(each, "_keras_mask", None) is not None for each in model.outputs or ())
    ignored = any(getattr(each, "ignore_class", None) is not None for each in losses)
    by_weight = any(
        getattr(each, "reduction", None) == "mean_with_sample_weight" for each in losses
    )
    if masked or ignored or by_weight or couples_examples(model, x, y, sample_weight):
        raise NotImplementedError(
            "The loss of a whole batch must be the mean of its passes, as kbatch took it. Received "
            "one that is not: a mask, ignore_class, mean_with_sample_weight, or a loss of examples "
            "together. Take the whole batch in one pass: leave out gradient_accumulation_steps, "
            "and give batches() the whole size."
        )


def couples_examples(model, x, y, sample_weight):
    """Tell whether the loss of 64 examples is not the mean of those of two halves."""
    count = min(64, len(keras.tree.flatten(x)[0])) // 2 * 2
    labels = np.asarray(keras.tree.flatten(y)[0][:count]).reshape(count, -1)
    order = np.arange(count)
    if np.issubdtype(labels.dtype, np.number):  # halves as different as they can be
        order = np.argsort(labels.mean(axis=1), kind="stable")

    def of(data, rows):
        return keras.tree.map_structure(lambda part: np.asarray(part[:count])[rows], data)

    def value(rows):
        weights = None if sample_weight is None else of(sample_weight, rows)
        inputs = of(x, rows)
        outputs = model(inputs, training=False)
        return float(model.compute_loss(inputs, of(y, rows), outputs, weights))

    whole, halves = value(order), [value(half) for half in np.split(order, 2)]
    return abs(whole - sum(halves) / 2) > 1e-3 * abs(whole)


def growing_sizes(kind, factor, last, multiple, examples):
    """Return the size of each batch of a training, which together hold all its examples."""
    sizes, before = [], 0
    while before < examples:
        sizes.append(at(kind, before / examples, last, factor, multiple))
        before += sizes[-1]
    return sizes


def batches(x, y, size, seed, sample_weight=None):
    """Return endless batches: each pass holds every example once, in another order."""
    examples = len(keras.tree.flatten(x)[0])
    return gathered(shuffled_batches(examples, size, seed), x, y, sample_weight)


def growing_batches(x, y, sizes, seed, sample_weight=None):
    """Return batches of these sizes, in the same order."""
    examples, sizes = len(keras.tree.flatten(x)[0]), np.array(sizes, "int64")
    cuts = tf.data.Dataset.from_tensor_slices((np.cumsum(sizes) - sizes, sizes))
    return gathered(shuffled_cuts(examples, cuts, seed), x, y, sample_weight)


def gathered(numbers, x, y, sample_weight):
    """Return batches of examples, of a dataset of batches of their numbers."""
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    with tf.device("CPU:0"):
        arrays = keras.tree.map_structure(tf.convert_to_tensor, data)

    def gather(rows):
        return keras.tree.map_structure(lambda array: tf.gather(array, rows), arrays)

    return numbers.map(gather).prefetch(2)


def photographs(source, image_size, most):
    """Return the first photographs of each class of a folder or a zip, in their order."""
    by_class = {}
    for folder in class_folders(zipfile.Path(source) if Path(source).is_file() else Path(source)):
        pixels = (decoded(file, image_size) for file in sorted(folder.iterdir(), key=place))
        found = [image for image in pixels if image is not None][:most]
        by_class[folder.name] = np.array(found)
    return by_class


def class_folders(folder):
    """Return the folders of the classes by name, through folders that hold but one other."""
    inner = [each for each in folder.iterdir() if each.is_dir()]
    inner = [each for each in inner if not each.name.startswith((".", "__MACOSX"))]
    if len(inner) == 1:
        return class_folders(inner[0])
    return sorted(inner, key=lambda each: each.name)


def place(file):
    """Return the key of the order: files with numbers by their number, others after them."""
    stem = Path(file.name).stem
    return (int(stem) if re.fullmatch(r"\d+", stem) else 1 << 60, file.name)


def decoded(file, image_size):
    """Return a photograph as pixels from 0 to 255; None for a file that is none."""
    try:
        return decode(file.read_bytes(), image_size)
    except (OSError, ValueError, SyntaxError):
        return None


def split(by_class):
    """Return three fifths of each class to train on, and one to validate on, each as (x, y).

    The last fifth is the test set, which nobody chose by.
    """
    fifth = min(map(len, by_class.values())) // 5

    def part(first, last):
        images = np.concatenate([images[first:last] for images in by_class.values()])
        return images, np.repeat(np.arange(len(by_class), dtype="int32"), last - first)

    return part(0, 3 * fifth), part(3 * fifth, 4 * fifth)
