"""The clock and the horizon in a plain `model.fit`, without a tuner.

Usage: python examples/plain_fit.py
"""

import tensorflow as tf

import kbatch
from kbatch.data.case_study import pictures
from kbatch.models.case_study import cnn

data = pictures("drawn", image_size=32)
model = cnn(32)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

clock = kbatch.callbacks.TrainingClock()
horizon = kbatch.callbacks.Horizon(
    3, tf.data.Dataset.from_tensor_slices(data.validation).batch(32), clock=clock
)
model.fit(*data.train, epochs=1000, verbose=0, callbacks=[clock, horizon])

milliseconds = 1e3 * clock.median_update_seconds
print(f"{clock.updates} updates, median {milliseconds:.1f} ms")
print(f"the first one took {clock.first_step_seconds:.2f} s longer")
score = kbatch.score(horizon.curve, horizon=3, chance=0.5)
print(f"accuracy held {horizon.value:.3f}, score {score:.4f} per second")
