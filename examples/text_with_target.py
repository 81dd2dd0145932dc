"""Text in padded batches, scored by the seconds to an area under the ROC curve of 0.85.

Usage: python examples/text_with_target.py [--trials 4] [--seconds 5]
"""

import argparse

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

import kbatch

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--trials", type=int, default=4)
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--out", default="runs")
options = parser.parse_args()

WORDS, EXAMPLES = 200, 1200
rng = np.random.default_rng(0)
mood = rng.normal(size=WORDS)  # how glad or sad each word is


def sentences(count):
    """Generate sentences of 8 to 24 word numbers, each labelled glad (1) or sad (0)."""
    for _ in range(count):
        words = rng.integers(1, WORDS, size=rng.integers(8, 25))
        yield words.astype("int32"), np.int32(mood[words].sum() + rng.normal() > 0)


def batches(count):
    """Return batches of sentences, padded to the longest sentence of each batch."""
    texts, labels = zip(*sentences(count), strict=True)
    texts, labels = tf.ragged.constant(texts), tf.constant(labels)
    pairs = tf.data.Dataset.from_tensor_slices((texts, labels)).map(
        lambda text, label: (tf.ensure_shape(text, (None,)), label)
    )
    return pairs.padded_batch(32, padded_shapes=([None], []))


def build(hp):
    """Build your model as it is, with a metric that Keras names by itself."""
    words = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(WORDS, 16)(words)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.MultiHeadAttention(2, 8)(x, x))
    model = keras.Model(words, keras.layers.Dense(1, "sigmoid", dtype="float32")(x))
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC()])
    return model


space = kbatch.Space(
    optimizer="adam", learning_rate={"adam": (1e-3, 2e-2)}, batch_size=(16, 32, 64)
)
hypermodel = kbatch.HyperModel(
    build, space, metric="val_auc", target=0.85, seconds_per_trial=options.seconds
)
tuner = keras_tuner.RandomSearch(
    hypermodel,
    objective=kbatch.objective(),
    max_trials=options.trials,
    directory=options.out,
    project_name="text",
    seed=1,
)
tuner.search(batches(EXAMPLES), validation_data=batches(400))
print(kbatch.report(tuner))
