"""What Keras divides a loss by: loss times count is the sum over all that counts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.models.losses import loss_count, loss_counts

RNG = np.random.default_rng(0)
LABELS, SCORES = np.array([0, 1, 2, 1, 0, 2]), RNG.normal(size=(6, 3)).astype("float32")
WEIGHTS = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 1.0], "float32")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


def assert_parts_add_up(loss, weights=None):
    """The loss of all examples is the mean of the losses of two passes, weighed by their counts."""
    total = float(loss(LABELS, SCORES, weights)) * float(loss_count(loss, LABELS, SCORES, weights))
    parts = 0.0
    for part in (slice(0, 2), slice(2, 6)):
        own = None if weights is None else weights[part]
        labels, scores = LABELS[part], tf.constant(SCORES[part])
        parts += float(loss(labels, scores, own)) * float(loss_count(loss, labels, scores, own))
    assert total == pytest.approx(parts, rel=1e-5)


def test_without_masks_a_pass_counts_its_examples():
    loss = CROSS_ENTROPY(from_logits=True)
    assert float(loss_count(loss, LABELS, SCORES, None)) == 6
    assert_parts_add_up(loss)
    assert_parts_add_up(loss, WEIGHTS)


def test_an_ignored_class_does_not_count():
    loss = CROSS_ENTROPY(from_logits=True, ignore_class=1)
    assert float(loss_count(loss, LABELS, SCORES, None)) == 4
    assert_parts_add_up(loss)


def test_a_mean_with_weights_counts_the_weights():
    loss = CROSS_ENTROPY(from_logits=True, reduction="mean_with_sample_weight")
    assert float(loss_count(loss, LABELS, SCORES, WEIGHTS)) == WEIGHTS.sum()
    assert_parts_add_up(loss, WEIGHTS)


def test_only_losses_with_a_count_of_their_own_count():
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    masked = keras.Sequential(
        [keras.Input((3,), dtype="int32"), keras.layers.Embedding(9, 2, mask_zero=True)]
    )
    assert not loss_counts(plain, CROSS_ENTROPY())
    assert loss_counts(plain, CROSS_ENTROPY(ignore_class=0))
    assert loss_counts(plain, {"a": "mse", "b": CROSS_ENTROPY(reduction="mean_with_sample_weight")})
    assert loss_counts(masked, "mse")
