"""Checks: what kbatch assumes is measured on the user's own model and data before any training."""

import warnings
from pathlib import Path

import keras
import memory_models
import numpy as np
import pytest
import tensorflow as tf
from short_searches import tuner_of

import kbatch
from kbatch.checks import arguments, catalogue, state
from kbatch.checks.check import Subject
from kbatch.data.validation import prepare
from kbatch.errors import KbatchError, ModelError
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import ModelMaker
from kbatch.records.project import Project
from kbatch.training.arguments import FitArguments


def test_every_check_says_what_it_assumes_and_what_follows():
    names = [check.name for check in catalogue.CHECKS]
    assert len(set(names)) == len(names) > 0
    for check in catalogue.CHECKS:
        for sentence in (check.assumes, check.otherwise):
            assert sentence
            assert not sentence.endswith(".")


def stateful(hp=None):
    inputs = keras.Input((4, 1), batch_size=8)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(2, stateful=True)(inputs)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_stateful_layers_are_refused_by_name(tmp_path):
    x, y = np.zeros((96, 4, 1), "float32"), np.zeros((96, 1), "float32")
    with pytest.raises(ModelError, match="lstm.* with stateful=True"):
        kbatch.train(kbatch.Recipe(8), stateful, x, y, (x, y), updates=1, metric="val_mae")
    tuner = tuner_of(tmp_path, model=stateful, metric="val_mae")
    with pytest.raises(KbatchError, match="lstm.* with stateful=True"):
        tuner.search(x, y, validation_data=(x, y), verbose=0)
    assert Project(tmp_path / "p").store.records() == []


def classifier(loss, metric="accuracy"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", loss, metrics=[metric])
    return model


@pytest.mark.parametrize(
    ("loss", "metric", "says"),
    [
        ("sparse_crossentropy", "accuracy", "Could not interpret loss identifier"),
        ("sparse_categorical_crossentropy", "accuracyy", "Could not interpret metric identifier"),
        ("mse", "accuracy", r"labels of shape \(None,\), outputs of shape \(None, 3\)"),
        ("categorical_crossentropy", "accuracy", "must have the same rank"),
    ],
)
def test_what_does_not_suit_the_labels_is_refused(tmp_path, loss, metric, says):
    """Reliability 12: these ended in FatalRuntimeError, or in a word on chance."""
    x, y = np.zeros((96, 4), "float32"), np.arange(96) % 3
    tuner = tuner_of(tmp_path, model=lambda: classifier(loss, metric))
    with pytest.raises(ModelError, match=f"Loss and metrics must suit .*{says}"):
        tuner.search(x, y, validation_data=(x, y), verbose=0)
    assert Project(tmp_path / "p").store.records() == []


def of_groups(y, p):
    """A loss over groups of four examples: a batch of two has none."""
    return tf.reduce_mean(tf.reshape(tf.square(tf.cast(y, p.dtype) - p), (-1, 4)), axis=1)


def penalised(y, p):
    """A loss with a gradient in it, which TensorFlow gives in a graph only."""
    return tf.reduce_mean(tf.gradients(tf.reduce_sum(p**2), p)[0] - tf.cast(y, p.dtype))


@pytest.mark.parametrize("loss", [of_groups, penalised])
def test_a_step_that_needs_a_whole_batch_or_a_graph_is_right(loss):
    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        return model

    x, y = np.zeros((64, 4), "float32"), np.zeros((64, 1), "float32")
    data = FitArguments(x, y, validation_data=(x, y)).data()
    maker = ModelMaker.of(ModelSpec(build))
    (found,) = catalogue.made(
        Subject.of_training(maker, data, kbatch.Recipe(32)), [arguments.FIRST_STEP]
    )
    assert found.verdict == "holds"


def test_a_finder_refuses_stateful_layers(own_cache, forked_workers):
    with pytest.raises(ModelError, match="kept with stateful=True"):
        kbatch.find_max_batch(memory_models.stateful, memory_limit="300MB", ceiling=4)


def test_a_finder_tells_of_values_that_nobody_chose(own_cache, forked_workers):
    arguments = {"memory_limit": "300MB", "ceiling": 4, "confirmed_steps": 0}
    with pytest.warns(UserWarning, match="lowest values: units=4; give values= of the largest"):
        kbatch.find_max_batch(memory_models.sized, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kbatch.find_max_batch(memory_models.sized, values={"units": 64}, **arguments)


def test_a_finder_refuses_values_that_build_does_not_declare(own_cache, forked_workers):
    arguments = {"memory_limit": "300MB", "ceiling": 4, "confirmed_steps": 0}
    with pytest.raises(KbatchError, match="unitz"):
        kbatch.find_max_batch(memory_models.sized, values={"unitz": 64}, **arguments)
    values = {"units": 64, "batch_size": 32}  # a tuner's, kbatch's axes among them
    assert kbatch.find_max_batch(memory_models.sized, values=values, **arguments).batch_size == 4


def recurrent(**arguments):
    return keras.layers.RNN(keras.layers.GRUCell(2), **arguments)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: recurrent(stateful=True),
        lambda: keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True)),
        lambda: keras.layers.ConvLSTM1D(2, 1, stateful=True),
        lambda: keras.Sequential([keras.Input(batch_shape=(8, 4, 1)), recurrent(stateful=True)]),
        lambda: keras.Sequential(
            [keras.Sequential([keras.Input(batch_shape=(8, 4, 1)), recurrent(stateful=True)])]
        ),
    ],
)
@pytest.mark.parametrize("is_stateful", [True, False])
def test_stateful_layers_are_found_wherever_they_are(layer, is_stateful):
    inner = layer()
    for each in inner._flatten_layers():
        if hasattr(each, "stateful"):
            each.stateful = is_stateful
    model = keras.Sequential([inner])
    subject = Subject.of_training(ModelMaker.of(ModelSpec(lambda: model)), None, kbatch.Recipe(8))
    vars(subject)["model"] = model
    if not is_stateful:
        assert state.look_at_state(subject).holds
        return
    with pytest.raises(ModelError, match="with stateful=True"):
        state.look_at_state(subject)


class Carrying(keras.layers.Layer):
    """Adds a running mean of its inputs."""

    def build(self, shape):
        self.kept = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, inputs):
        outputs = inputs + self.kept
        self.kept.assign(0.9 * self.kept + 0.5 * keras.ops.mean(inputs, axis=0))
        return outputs


@pytest.mark.parametrize("layer", [Carrying, keras.layers.BatchNormalization])
def test_what_own_layers_carry_to_the_next_batch_is_told(layer):
    def build(hp=None):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), layer()])

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    data = prepare(x, x[:, :3], validation_data=(x[:8], x[:8, :3]))
    subject = Subject.of_training(ModelMaker.of(ModelSpec(build)), data, kbatch.Recipe(8))
    assert state.look_at_state(subject).holds == (layer is not Carrying)


def test_the_page_of_assumptions_lists_every_check():
    page = (Path(__file__).parents[2] / "docs/explanation/assumptions.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed == [
        f"| `{check.name}` | {check.assumes} | {check.otherwise} |" for check in catalogue.CHECKS
    ]


def reader(hp=None):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def texts(lengths):
    """Texts of these lengths, each again and again, in padded batches."""

    def examples():
        for length in [*lengths] * 8:
            yield np.ones(length, "int32"), length % 2

    spec = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32)
    return tf.data.Dataset.from_generator(examples, output_signature=spec).padded_batch(1)


@pytest.mark.parametrize(
    ("lengths", "jit_compile", "says"),
    [
        (range(3, 23), False, "64 batches have 20 shapes, up to (22,): the longest decides"),
        (range(3, 23), True, "64 batches have 20 shapes, up to (22,): XLA compiles"),
        ((5, 9, 13), False, None),
    ],
)
def test_many_shapes_are_told(lengths, jit_compile, says):
    data = FitArguments(texts(lengths), validation_data=texts([4, 5]), batched=True).data()
    subject = Subject.of_training(
        ModelMaker.of(ModelSpec.of(reader)), data, kbatch.Recipe(1, jit_compile=jit_compile)
    )
    finding = arguments.look_at_shapes(subject)
    assert finding.holds == (says is None)
    assert finding.facts["shapes"] == len(set(lengths))
    assert (says or "") in finding.sentence


def test_many_shapes_are_a_remark_of_a_training():
    data = texts(range(3, 23))
    _, outcome = kbatch.train(kbatch.Recipe(2), reader, data, None, texts([4, 5]), updates=1)
    assert any("shapes, up to" in remark for remark in outcome.remarks)
