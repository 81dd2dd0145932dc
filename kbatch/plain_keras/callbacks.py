"""Callbacks of a recipe: its last step, its learning rate and its averaged weights."""

import keras
import tensorflow as tf


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
