"""The gradient of a batch in passes: that of Keras for the whole batch at once."""

import keras
import method_models
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kbatch import Recipe
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.train_step import BatchGradient

SPARSE = method_models.SPARSE


def gradients(build, batch, passes, loss=None):
    model = ModelMaker(build, CompileArguments(loss, ["accuracy"])).make(Recipe())
    if not model.built:
        model(batch[0])
    before = model.get_weights()
    found, metrics = tf.function(BatchGradient(model, passes))(batch)
    for after, first in zip(model.trainable_weights, before, strict=False):
        np.testing.assert_array_equal(after, first)  # nothing was applied
    assert "apply_gradients" not in vars(model.optimizer)
    assert "compute_loss" not in vars(model)
    return [np.asarray(each) for each in found], {k: float(v) for k, v in metrics.items()}


def assert_passes_add_up(build, batch, loss=None):
    whole, measured = gradients(build, batch, 1, loss)
    for passes in (2, 4):
        parts, metrics = gradients(build, batch, passes, loss)
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        yield measured, metrics
    assert any(np.abs(each).max() > 1e-4 for each in whole)


def test_passes_add_up_and_so_do_metrics():
    regularized = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
    for measured, metrics in assert_passes_add_up(
        lambda: method_models.dense(regularized), method_models.data(), SPARSE(True)
    ):
        assert metrics == pytest.approx(measured, rel=1e-5)


def sequences():
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.LSTM(4, return_sequences=True),
            layers.Dense(3),
        ]
    )


def words(examples=32):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, (examples, 6)) * (np.arange(6) < rng.integers(1, 7, examples)[:, None])
    x[:8, 1:] = 0  # a pass that counts little
    return x.astype("int32"), rng.integers(0, 3, (examples, 6))


@pytest.mark.parametrize(
    "loss", [SPARSE(True), SPARSE(True, ignore_class=0)], ids=["mask", "ignored"]
)
def test_passes_with_unequal_counts_are_weighed(loss):
    list(assert_passes_add_up(sequences, words(), loss))


def test_sample_weights_that_the_loss_divides_by_are_weighed():
    weights = np.linspace(0, 3, 32, dtype="float32")
    loss = SPARSE(True, reduction="mean_with_sample_weight")
    list(assert_passes_add_up(method_models.dense, (*method_models.data(), weights), loss))


def test_rows_of_an_embedding_become_a_dense_gradient():
    x, y = words()

    def build():
        head = [layers.Flatten(), layers.Dense(3)]
        return keras.Sequential([keras.Input((6,)), layers.Embedding(9, 4), *head])

    found, _ = gradients(build, (x, y[:, 0]), 1, SPARSE(True))
    assert found[0].shape == (9, 4)
    list(assert_passes_add_up(build, (x, y[:, 0]), SPARSE(True)))


def test_a_weight_that_the_loss_leaves_out_has_no_gradient():
    def build():
        inputs = keras.Input((5,))
        model = keras.Model(inputs, layers.Dense(3)(inputs))
        model.unused = layers.Dense(2)
        model.unused.build((None, 5))
        return model

    model = ModelMaker(build, CompileArguments(SPARSE(True))).make(Recipe())
    for passes in (1, 4):
        found, _ = BatchGradient(model, passes)(method_models.data())
        names = [variable.path.split("/")[0] for variable in model.trainable_variables]
        assert [each is None for each in found] == [name != names[0] for name in names]


def test_dicts_in_and_several_outputs_out():
    def build():
        one, two = keras.Input((3,), name="one"), keras.Input((2,), name="two")
        x = layers.Dense(4, "tanh")(layers.Concatenate()([one, two]))
        outputs = {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(3, name="b")(x)}
        model = keras.Model({"one": one, "two": two}, outputs)
        model.compile(
            "sgd", {"a": "mse", "b": SPARSE(True)}, loss_weights={"a": 0.5, "b": 2.0},
            jit_compile=False,
        )  # fmt: skip
        return model

    rng = np.random.default_rng(0)
    x, y = method_models.data()
    inputs = {"one": x[:, :3], "two": x[:, 3:]}
    batch = inputs, {"a": rng.normal(size=(32, 1)).astype("float32"), "b": y}
    model = ModelMaker(build).make(Recipe())
    whole, _ = BatchGradient(model, 1)(batch)
    parts, metrics = BatchGradient(model, 4)(batch)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert {"loss", "a_loss", "b_loss"} <= set(metrics)


def test_an_error_in_the_middle_leaves_the_optimizer_as_it_was():
    model = ModelMaker(method_models.dense, CompileArguments(SPARSE(True))).make(Recipe())
    x, y = method_models.data()
    with pytest.raises(Exception, match=r"shape|Incompatible|incompatible"):
        BatchGradient(model, 1)((x[:, :2], y))
    assert "apply_gradients" not in vars(model.optimizer)
