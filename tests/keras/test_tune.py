"""A call of fit, taken as it is: the search made of it, and the training of what won."""

from contextlib import nullcontext

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers

import kbatch
from kbatch.data.streams import inputs_of
from kbatch.errors import DataError, ModelError, SearchError
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import ModelMaker
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.standin import winner
from kbatch.standin.configuration import noting
from kbatch.standin.copies import alone, take_labels_away
from kbatch.standin.fit_call import KERAS_FIT, FitCall, standing_in
from kbatch.standin.taken import Taken
from kbatch.training.arguments import FitArguments

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 8)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype("int32")
SHORT = {"seconds_per_trial": 0.3, "max_trials": 2, "confirm_seeds": 0}


def classifier(optimizer="sgd"):
    model = keras.Sequential([layers.Input((8,)), layers.Dense(8, "relu"), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def taken(model=None, **arguments):
    arguments = {"x": X, "y": Y, "validation_split": 0.25, **arguments}
    return Taken.of(FitCall.of(model or classifier(), (), arguments))


def test_a_stand_in_is_given_each_call_and_leaves_no_trace():
    seen, model = [], classifier()
    with standing_in(lambda call: seen.append(call) or "answer"):
        assert model.fit(X, Y, epochs=7, verbose=0) == "answer"
    assert seen[0].model is model
    assert (seen[0].epochs, seen[0].arguments["batch_size"]) == (7, None)
    assert seen[0].place[0] == __file__
    assert keras.Model.fit is KERAS_FIT
    assert "fit" not in vars(keras.Model)


def test_inside_of_a_stand_in_fit_is_keras_own():
    def take(call):
        return call.model.fit(X, Y, epochs=1, verbose=0)

    with standing_in(take):
        assert "accuracy" in classifier().fit(X, Y).history


def test_an_error_puts_fit_back():
    with pytest.raises(ZeroDivisionError), standing_in(lambda call: 1 / 0):
        classifier().fit(X, Y)
    assert keras.Model.fit is KERAS_FIT


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({}, 32),
        ({"batch_size": 48}, 48),
        ({"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(20), "y": None}, 20),
    ],
)
def test_todays_batch_size_is_read_of_the_call(arguments, size):
    if "x" in arguments:
        arguments |= {"validation_split": 0.0, "validation_data": (X[:50], Y[:50])}
    found = taken(**arguments)
    assert found.batch_size == size
    assert found.space(None, {}).baseline.batch_size == size
    assert size in found.space(None, {}).batch_size


def test_the_epochs_after_the_first_count():
    assert taken(epochs=9, initial_epoch=4).epochs == 5


def test_a_dataset_that_repeats_is_cut_to_its_steps():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(20).repeat()
    found = taken(x=data, y=None, steps_per_epoch=5, validation_split=0.0, validation_data=(X, Y))
    assert int(found.arguments["x"].cardinality()) == 5


def test_a_generator_is_read_once_and_said_so():
    def batches():
        while True:
            yield X[:40], Y[:40]

    data = {"y": None, "validation_split": 0.0, "validation_data": (X, Y)}
    found = taken(x=batches(), steps_per_epoch=3, **data)
    assert found.batch_size == 40
    assert any("read once" in note for note in found.notes)
    with pytest.raises(DataError, match="number of its batches"):
        taken(x=batches(), **data)


def test_without_validation_the_option_is_named():
    with pytest.raises(SearchError, match="--validation-split"):
        taken(validation_split=0.0)


def test_a_dataset_is_split_as_the_option_asks():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)
    call = FitCall.of(classifier(), (data,), {})
    found = Taken.of(call, validation_split=0.2)
    sizes = [int(found.arguments[name].cardinality()) for name in ("x", "validation_data")]
    assert sizes == [16, 4]


def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(ModelError, match="compiled before"):
        taken(keras.Sequential([layers.Dense(1)]))


def test_the_metric_of_several_outputs_has_its_outputs_name():
    inputs = keras.Input((8,))
    outputs = {"a": layers.Dense(1, name="a")(inputs), "b": layers.Dense(2, name="b")(inputs)}
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"a": "mse", "b": loss}, metrics={"a": ["mae"], "b": ["accuracy"]})
    assert taken(model, y={"a": X[:, 0], "b": Y}).metric == "val_b_accuracy"


def trained(found, recipe):
    maker = ModelMaker.of(ModelSpec.of(found.build))
    arguments = FitArguments.parse((), found.arguments)
    data = arguments.data(lambda: inputs_of(found.call.model))
    goal = Goal(1.0, found.metric, "max", 0.5)
    return winner.trained(found, recipe, maker, data, goal)


def test_todays_recipe_ends_in_the_weights_of_plain_fit():
    """With the whole data as one batch, order plays no part."""
    plain, model = classifier(), classifier()
    model.set_weights(plain.get_weights())
    given = {"validation_data": (X[:100], Y[:100]), "batch_size": 400, "epochs": 6, "verbose": 0}
    expected = plain.fit(X, Y, **given)
    found = taken(model, validation_split=0.0, **given)
    recipe = ModelMaker.of(ModelSpec.of(found.build)).baseline(Recipe(batch_size=400))
    history = trained(found, recipe)
    for mine, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-4)


def test_a_winner_of_another_policy_hands_its_weights_over():
    model = classifier()
    before = model.get_weights()
    found = taken(model, epochs=2, verbose=0)
    trained(found, Recipe(64, "sgd", 0.1, policy="mixed_bfloat16"))
    assert {each.dtype_policy.name for each in model.layers} == {"float32"}
    assert not np.array_equal(model.get_weights()[0], before[0])
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"] > 0.8


def test_callbacks_of_a_search_write_elsewhere(tmp_path):
    own = tmp_path / "own.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(str(own), monitor="val_loss")
    found = taken(callbacks=[checkpoint, keras.callbacks.BackupAndRestore(str(tmp_path / "b"))])
    copies = found.callbacks_of_search(tmp_path / "out")
    assert [str(each.filepath) for each in copies] == [str(tmp_path / "out/callbacks/own.keras")]
    assert str(checkpoint.filepath) == str(own)


def test_a_call_is_tuned_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = classifier()
    arguments = {"validation_split": 0.25, "epochs": 3, "verbose": 0, **SHORT}
    tuned = kbatch.tune(model, X, Y, **arguments)
    assert tuned.model is model
    assert len(tuned.history.history["val_accuracy"]) == 3
    assert tuned.report.goal.metric == "val_accuracy"
    assert "def train(" in tuned.to_code()
    tuned.save("best.keras")
    assert keras.models.load_model("best.keras").count_params() == model.count_params()
    before = len(tuned.report.records)
    again = kbatch.tune(classifier(), X, Y, **arguments)
    assert len(again.report.records) == before


class Halves(keras.Model):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.part(data) - data) ** 2)
        variables = self.part.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def test_step(self, data):
        return {"loss": tf.reduce_mean((self.part(data) - data) ** 2)}


@pytest.mark.parametrize(
    "arguments_noted",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["made anew", "the model itself"],
)
def test_a_model_without_labels_is_tuned(arguments_noted, tmp_path):
    with noting() if arguments_noted else nullcontext():
        model = Halves(keras.Sequential([layers.Input((8,)), layers.Dense(3), layers.Dense(8)]))
    model.compile("adam")
    given = {"validation_data": (X[:80],), "epochs": 2, "verbose": 0, "directory": tmp_path}
    tuned = kbatch.tune(model, X[80:], **given, **SHORT)
    goal = tuned.report.goal
    assert (goal.metric, goal.direction) == ("val_loss", "min")
    assert len(tuned.history.history["val_loss"]) == 2
    assert "train_step" not in vars(model)
    model.fit(X[80:], verbose=0)


def test_labels_to_validate_on_alone_are_refused():
    with pytest.raises(DataError, match="labels to validate on alone"):
        taken(y=None, validation_split=0.0, validation_data=(X, Y))


def test_unknown_arguments_are_refused():
    with pytest.raises(SearchError, match="epoch_count"):
        kbatch.tune(classifier(), X, Y, epoch_count=3)


def test_a_cell_is_tuned(tmp_path):
    class Shell:
        def __init__(self):
            self.magics = {}

        def register_magic_function(self, function, kind, name):
            self.magics[name] = function

        def run_cell(self, cell):
            exec(cell, {"model": classifier(), "X": X, "Y": Y})

    shell = Shell()
    kbatch.load_ipython_extension(shell)
    try:
        tuned = shell.magics["tune"](
            f"4s {tmp_path}", "model.fit(X, Y, validation_split=0.25, epochs=1, verbose=0)"
        )
        assert tuned.history.history["val_accuracy"]
        with pytest.raises(SearchError, match="must call model.fit"):
            shell.magics["tune"]("12s", "pass")
    finally:
        kbatch.unload_ipython_extension(shell)


def test_inputs_without_labels_reach_a_step_as_keras_hands_them():
    seen = []

    class Listening(keras.Model):
        def train_step(self, data):
            seen.append(keras.tree.map_structure(lambda each: tuple(each.shape[1:]), data))
            return {"loss": 0.0}

    def model():
        inputs = [keras.Input((8,)), keras.Input((8,))]
        made = Listening(inputs, layers.Add()(inputs))
        made.compile("sgd", run_eagerly=True)
        return made

    pair = [X[:32], X[:32]]
    model().fit(pair, verbose=0)
    stripped = model()
    take_labels_away(stripped, alone)
    stripped.fit(pair, Y[:32], verbose=0)
    assert seen[0] == seen[1]


class Encoder(keras.Model):
    """Its step looks at what Keras hands it."""

    def __init__(self, in_tuples):
        super().__init__()
        self.in_tuples, self.inner = in_tuples, layers.Dense(8)

    def call(self, x):
        return self.inner(x)

    def test_step(self, data):
        assert isinstance(data, tuple) == self.in_tuples
        x = data[0] if self.in_tuples else data
        return {"loss": tf.reduce_mean((self(x) - x) ** 2)}

    def train_step(self, data):
        x = data[0] if self.in_tuples else data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - x) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("in_tuples", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dataset_of_inputs_reaches_the_step_as_it_is(in_tuples, tmp_path):
    def batches(x):
        data = tf.data.Dataset.from_tensor_slices(x).batch(16)
        return data.map(lambda each: (each,)) if in_tuples else data

    model = Encoder(in_tuples)
    model.compile("adam")
    again = {"max_trials": 1, "seconds_per_trial": 0.2, "confirm_seeds": 0}
    tuned = kbatch.tune(
        model, batches(X), validation_data=batches(X[:32]), directory=tmp_path, verbose=0, **again
    )
    assert tuned.history.history["val_loss"]


def test_several_steps_a_call_are_said_to_be_left_out():
    model = classifier()
    model.compile(model.optimizer, "sparse_categorical_crossentropy", steps_per_execution=4)
    assert any("steps_per_execution=4 is left out" in note for note in taken(model).notes)
    assert model.steps_per_execution == 1


def test_a_gathered_optimizer_state_is_said_to_be_left():
    model = classifier()
    model.fit(X, Y, verbose=0)
    assert any("optimizer begins anew" in note for note in taken(model).notes)
    assert not any("optimizer" in note for note in taken().notes)


def test_after_training_other_shapes_of_labels_are_evaluated():
    model = classifier()
    found = taken(model, epochs=1, verbose=0)
    trained(found, Recipe(64, "sgd", 0.1))
    column = model.evaluate(X, Y[:, None], verbose=0)
    assert model.evaluate(pd.DataFrame(X), pd.Series(Y), verbose=0) == pytest.approx(column)


def test_a_generator_to_validate_on_is_read_once():
    def batches():
        while True:
            yield X[:40], Y[:40]

    data = {"validation_split": 0.0, "validation_data": batches(), "validation_steps": 2}
    assert int(taken(**data).arguments["validation_data"].cardinality()) == 2


def test_epochs_go_on_counting_and_are_validated_as_asked():
    given = {"validation_data": (X[:100], Y[:100]), "batch_size": 400, "verbose": 0}
    given |= {"epochs": 6, "initial_epoch": 2, "validation_freq": 2}
    plain, model = classifier(), classifier()
    expected = plain.fit(X, Y, **given)
    found = taken(model, validation_split=0.0, **given)
    history = trained(found, Recipe(400, "sgd", 0.1))
    assert history.epoch == expected.epoch
    lengths = [
        {name: len(each) for name, each in one.history.items()} for one in (history, expected)
    ]
    assert lengths[0] == lengths[1]


def test_callbacks_that_cannot_be_copied_are_refused(tmp_path):
    class Open(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.file = (tmp_path / "log").open("w")

    found = taken(callbacks=[Open()])
    assert any("Open" in note for note in found.notes)
    with pytest.raises(SearchError, match="copies of the callbacks"):
        found.callbacks_of_search(tmp_path)
