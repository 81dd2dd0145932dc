"""A trace that several trainings share changes no number, and is shared only where it may be."""

from copy import copy
from dataclasses import fields, replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.callbacks.evaluation import evaluated
from kbatch.callbacks.user_callbacks import is_of_keras
from kbatch.data.validation import prepare
from kbatch.errors import SearchError
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import ModelMaker
from kbatch.models.traces import Traces, graph_of
from kbatch.outcome import OUT_OF_MEMORY, Goal, Outcome
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import Job
from kbatch.runtime import device_memory
from kbatch.training import trial
from kbatch.training.pace import RunOptions
from kbatch.training.progress import Watcher
from kbatch.training.run import fit_arguments, recipe_scope

layers = keras.layers
rng = np.random.default_rng(0)
X = rng.normal(size=(192, 8, 8, 1)).astype("float32")
Y = rng.integers(0, 4, 192)
DATA = prepare(X[:128], Y[:128], validation_data=(X[128:], Y[128:]))
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model, loss=FROM_LOGITS):
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def headed(*parts, loss=FROM_LOGITS):
    return compiled(
        keras.Sequential([keras.Input((8, 8, 1)), *parts, layers.Flatten(), layers.Dense(4)]), loss
    )


def plain():
    return headed(layers.Dense(4, "relu"), layers.BatchNormalization(), layers.Dropout(0.3))


def drawing():
    return headed(layers.RandomFlip(), layers.Conv2D(4, 3), layers.SpatialDropout2D(0.3))


def nested():
    inner = keras.Sequential([keras.Input((8, 8)), layers.LSTM(4, recurrent_dropout=0.2)])
    pixels = keras.Input((8, 8, 1))
    rows = layers.Reshape((8, 8))(layers.Rescaling(0.5)(pixels))
    joined = layers.concatenate([inner(rows), layers.GlobalAveragePooling1D()(rows)])
    return compiled(keras.Model(pixels, layers.Dense(4)(joined)))


def maker(build):
    return ModelMaker.of(ModelSpec.of(build))


def trained(model, recipe, seed=0):
    """Train and measure a model, and return its values and those of its optimizer."""
    options = RunOptions(seed=seed, own_policy="float32")
    arguments = fit_arguments(recipe, DATA.training, options) | {"epochs": 2, "verbose": 0}
    with recipe_scope(model, recipe, options):
        model.fit(**arguments)
    evaluated(model, DATA.validation)
    return values(model)


def values(model):
    return [each.numpy() for each in (*model.variables, *model.optimizer.variables)]


def lent(traces, build, recipe, seed=0):
    """Train by a recipe with traces; return what the user's model holds, and what trained."""
    made = maker(build).with_seed(seed)
    model = made.make(recipe)
    with traces.lent(model, recipe, lambda: made.make(recipe)) as own:
        trained(own, recipe, seed)
    return values(model), own


def alone(build, recipe, seed=0):
    return trained(maker(build).with_seed(seed).make(recipe), recipe, seed)


def same(one, other):
    return len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)
    )


DEFAULT = Recipe(batch_size=32)
# Of each field of a recipe another value; with those that need one of another field.
OTHERS = {
    "batch_size": {"batch_size": 16},
    "optimizer": {"optimizer": "sgd"},
    "learning_rate": {"learning_rate": 0.1},
    "warmup_updates": {"warmup_updates": 3},
    "policy": {"policy": "mixed_bfloat16"},
    "augmentation": {"augmentation": "flip"},
    "micro_batch_size": {"micro_batch_size": 16},
    "jit_compile": {"jit_compile": True},
    "recompute": {"recompute": "segments:2"},
    "label_smoothing": {"label_smoothing": 0.1},
    "weight_decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.5},
    "dropout_scale": {"dropout_scale": 0.5},
    "schedule": {"schedule": "cosine"},
    "training": {"training": "sam:0.05"},
    "clip_norm": {"clip_norm": 0.1},
    "ema": {"ema": 0.9},
    "batch_schedule": {"batch_schedule": "linear:2"},
    "normalization": {"normalization": "group"},
    "accumulation": {"accumulation": "exact", "micro_batch_size": 16},
    "beta_2": {"beta_2": 0.9},
}
# What makes no other graph: a training by it must find the trace of the default recipe.
OF_ONE_GRAPH = {"batch_size", "learning_rate", "warmup_updates", "schedule", "ema"}


def test_each_field_of_a_recipe_has_another_value_here():
    assert set(OTHERS) == {field.name for field in fields(Recipe)}


@pytest.fixture
def after_default(of_default):
    """Traces of a training by the default recipe alone, and the model that trained."""
    traces, own = of_default
    mine = copy(traces)
    mine._kept = dict(traces._kept)  # at most eight are kept, and the tests of a module are more
    return mine, own


@pytest.fixture(scope="module")
def of_default():
    traces = Traces()
    trained_values, own = lent(traces, plain, DEFAULT)
    assert len(traces) == 1
    assert same(trained_values, alone(plain, DEFAULT))
    return traces, own


def built_for(name):
    """A model that a recipe with another value of that field can train."""
    return drawing if name == "accumulation" else plain  # exact passes refuse its normalization


@pytest.mark.parametrize("name", OTHERS)
def test_a_field_makes_another_graph_unless_it_stands_outside(name):
    build, other = built_for(name), replace(DEFAULT, **OTHERS[name])
    of_default, of_other = (
        graph_of(maker(build).make(recipe), recipe) for recipe in (DEFAULT, other)
    )
    assert of_default is not None
    assert (of_default == of_other) == (name in OF_ONE_GRAPH)


@pytest.mark.parametrize(
    "name",
    [
        each if each in OF_ONE_GRAPH else pytest.param(each, marks=pytest.mark.slow)
        for each in OTHERS
    ],
)
def test_a_training_after_another_equals_the_training_alone(after_default, name):
    other = replace(DEFAULT, **OTHERS[name])
    traces, first = after_default
    build = built_for(name)
    shared, own = lent(traces, build, other, seed=1)
    assert (own is first) == (name in OF_ONE_GRAPH)
    assert same(shared, alone(build, other, seed=1))


@pytest.mark.parametrize(
    ("build", "changed"),
    [
        (plain, {}),
        (nested, {}),
        (plain, {"optimizer": "sgd", "policy": "mixed_float16", "augmentation": "mixup"}),
        *(
            pytest.param(build, changed, marks=pytest.mark.slow)
            for build, changed in (
                (drawing, {}),
                (plain, {"jit_compile": True}),
                (plain, {"augmentation": "flip_shift_contrast"}),
                (drawing, {"augmentation": "flip_shift_mixup"}),
                (plain, {"augmentation": "cutmix"}),
            )
        ),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_a_trace_serves_again(build, changed):
    traces, recipe = Traces(), replace(DEFAULT, **changed)
    _, first = lent(traces, build, replace(recipe, batch_size=16), seed=1)
    for seed in (0, 2):
        shared, own = lent(traces, build, recipe, seed)
        assert own is first
        assert same(shared, alone(build, recipe, seed))


class Own(layers.Dense):
    """A layer of the user's."""


class OwnZeros(keras.initializers.Zeros):
    """An initializer of a module whose name begins as that of Keras."""

    __module__ = "keras_own"


class OwnModel(keras.Sequential):
    """A model of the user's."""


def own_function(*args):
    return keras.losses.sparse_categorical_crossentropy(*args, from_logits=True)


def with_changed(change):
    model = plain()
    change(model)
    return model


def adapted():
    normalization = layers.Normalization()
    normalization.adapt(X)
    return normalization


def of_other_function():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss.fn = own_function
    return loss


def without_input():
    return compiled(keras.Sequential([layers.Flatten(), layers.Dense(4)]))


def stateful():
    pixels = keras.Input((8, 8, 1), batch_size=32)
    rows = layers.Reshape((8, 8))(pixels)
    return compiled(keras.Model(pixels, layers.LSTM(4, stateful=True)(rows)))


OF_THEIR_OWN = {
    "inputs": without_input,
    "state": stateful,
    "draws of a trace": lambda: headed(layers.AugMix()),
    "layer": lambda: headed(Own(4)),
    "lambda": lambda: headed(layers.Lambda(lambda x: 2 * x, output_shape=(8, 8, 1))),
    "model": lambda: compiled(OwnModel([keras.Input((8, 8, 1)), layers.Flatten()])),
    "activation": lambda: headed(layers.Dense(4, activation=lambda x: x)),
    "regularizer": lambda: headed(layers.Dense(4, kernel_regularizer=lambda w: 0.1)),
    "initializer": lambda: headed(layers.Dense(4, kernel_initializer=OwnZeros())),
    "values of data": lambda: headed(adapted()),
    "loss": lambda: headed(loss=own_function),
    "function of a loss": lambda: headed(loss=of_other_function()),
    "call": lambda: with_changed(lambda m: setattr(m.layers[0], "call", m.layers[0].call)),
    "step": lambda: with_changed(lambda m: setattr(m, "train_step", m.train_step)),
    "eager": lambda: with_changed(lambda m: setattr(m, "run_eagerly", True)),
    "decay": lambda: with_changed(
        lambda m: m.optimizer.exclude_from_weight_decay(var_names=["bias"])
    ),
}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_what_is_of_their_own_has_a_trace_of_its_own(name):
    model = OF_THEIR_OWN[name]()
    assert graph_of(model, DEFAULT) is None
    with Traces().lent(model, DEFAULT, lambda: pytest.fail("made")) as own:
        assert own is model


OTHER_GRAPHS = {
    "rate": lambda m: setattr(m.layers[2], "rate", 0.1),
    "epsilon": lambda m: setattr(m.layers[1], "epsilon", 0.1),
    "frozen": lambda m: setattr(m.layers[0], "trainable", False),
    "loss": lambda m: compiled(m, "sparse_categorical_crossentropy"),
    "clipped": lambda m: setattr(m.optimizer, "clipnorm", 1.0),
    "decay": lambda m: setattr(m.layers[0].kernel, "regularizer", keras.regularizers.L2(0.1)),
    "bound": lambda m: setattr(m.layers[0].kernel, "constraint", keras.constraints.MaxNorm(1)),
    "bias": lambda m: setattr(m.layers[0], "bias", None),
}


@pytest.mark.parametrize("name", OTHER_GRAPHS)
def test_what_is_changed_later_makes_another_graph(name):
    def graph(build):
        return graph_of(maker(build).raw("float32"), DEFAULT)

    assert graph(plain) == graph(plain)
    assert graph(plain) != graph(lambda: with_changed(OTHER_GRAPHS[name]))


def test_a_model_that_changes_while_it_trains_is_not_kept():
    traces = Traces()
    made = maker(plain)
    with traces.lent(made.make(DEFAULT), DEFAULT, lambda: made.make(DEFAULT)) as own:
        trained(own, DEFAULT)
        own.layers[0].trainable = False
    assert len(traces) == 0


def test_a_model_that_a_strategy_made_for_one_device_is_not_kept():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = plain()
    assert graph_of(mirrored, DEFAULT) is None
    assert graph_of(plain(), DEFAULT) is not None


def test_models_that_share_weights_train_themselves():
    base = layers.Dense(4)
    made = maker(lambda: headed(base))
    model = made.make(DEFAULT)
    with Traces().lent(model, DEFAULT, lambda: made.make(DEFAULT)) as own:
        assert own is model


def test_a_build_that_draws_trains_the_model_that_it_returned():
    rates = iter((0.1, 0.2, 0.3))
    made = maker(lambda: headed(layers.Dropout(next(rates))))
    model, traces = made.make(DEFAULT), Traces()
    with traces.lent(model, DEFAULT, lambda: made.make(DEFAULT)) as own:
        assert own is model
    assert len(traces) == 0


def test_a_build_that_is_called_once_trains_its_model():
    rates = iter((0.1,))
    made = maker(lambda: headed(layers.Dropout(next(rates))))
    model = made.make(DEFAULT)
    with Traces().lent(model, DEFAULT, lambda: made.make(DEFAULT)) as own:
        assert own is model


def test_an_optimizer_of_other_weights_is_not_copied():
    models = [maker(plain).make(DEFAULT) for _ in range(2)]
    models[0].optimizer.build(models[0].trainable_variables)
    for model in models:
        model.layers[0].trainable = False
    assert graph_of(models[0], DEFAULT) == graph_of(models[1], DEFAULT)
    with Traces().lent(models[0], DEFAULT, lambda: models[1]) as own:
        assert own is models[0]


def test_a_model_that_build_returns_again_keeps_no_step():
    model = plain()
    made, recipe = maker(lambda: model), replace(DEFAULT, augmentation="flip")
    for _ in range(2):
        lent_model = made.make(recipe)
        with Traces().lent(lent_model, recipe, lambda: made.make(recipe)) as own:
            assert own is model
            trained(own, recipe)


@pytest.mark.parametrize("callback", [keras.callbacks.EarlyStopping(), keras.callbacks.Callback()])
def test_callbacks_of_keras_alone_may_share(callback):
    assert is_of_keras(callback)
    assert not is_of_keras(type("Own", (type(callback),), {})())
    assert not is_of_keras(keras.callbacks.LambdaCallback(on_train_begin=print))


@pytest.mark.slow
def test_own_callbacks_see_the_model_of_build(tmp_path):
    built, trained_models = [], []

    def build(hp):
        built.append(plain())
        return built[-1]

    class Seen(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            trained_models.append(self.model)

    hypermodel = kbatch.HyperModel(
        build, kbatch.Space(jit_compile=False, batch_size=(32,)), seconds_per_trial=0.2
    )
    tuner = kbatch.Tuner(hypermodel, max_trials=2, directory=tmp_path, project_name="p")
    data = {"validation_data": (X[128:], Y[128:]), "callbacks": [Seen()]}
    tuner.search(X[:128], Y[:128], verbose=0, **data)
    assert all(any(model is each for each in built) for model in trained_models)


def test_an_error_keeps_nothing():
    traces = Traces()
    made = maker(plain)
    with (
        pytest.raises(KeyboardInterrupt),
        traces.lent(made.make(DEFAULT), DEFAULT, lambda: made.make(DEFAULT)),
    ):
        raise KeyboardInterrupt
    assert len(traces) == 0


class Fitted(kbatch.HyperModel):
    """Notes what the model of each trial measures once its training is over."""

    def fit(self, hp, model, *args, **kwargs):
        result = super().fit(hp, model, *args, **kwargs)
        self.after = [*getattr(self, "after", []), (result["val_accuracy"], model)]
        return result


def test_the_model_of_a_trial_stays_its_users(tmp_path):
    hypermodel = Fitted(plain, kbatch.Space(jit_compile=False), seconds_per_trial=0.2)
    tuner = kbatch.Tuner(hypermodel, max_trials=3, directory=tmp_path, project_name="p")
    validation = (X[128:], Y[128:])
    tuner.search(X[:128], Y[:128], validation_data=validation, verbose=0)
    measured = [value for value, _ in hypermodel.after]
    again = [
        model.evaluate(*validation, verbose=0, return_dict=True)["accuracy"]
        for _, model in hypermodel.after
    ]
    np.testing.assert_allclose(measured, again, atol=1e-6)
    assert all(model.history.model is model for _, model in hypermodel.after)
    assert len({id(model) for _, model in hypermodel.after}) == 3


def test_out_of_memory_with_kept_models_is_tried_without_them(monkeypatch):
    ran = []

    def run(model, *args):
        ran.append(model)
        return Outcome(OUT_OF_MEMORY if len(ran) == 1 else "nan")

    monkeypatch.setattr(trial, "run", run)
    made, traces = maker(plain), Traces()
    trainer = trial.LocalTrainer(made, DATA, Goal(1.0, "val_accuracy", "max", 0.25), traces)
    job = Job("search", 0, 0, DEFAULT, {}, None, (), None)
    of_user = trial.new_trial(job, made)
    outcome = trainer.train(trial.Order(job, RunOptions()), Watcher(), of_user, None).outcome
    assert outcome.ended == "nan"
    assert [each is of_user.model for each in ran] == [False, True]
    assert len(traces) == 0


@pytest.mark.parametrize(("counted", "kept"), [(None, 1), (0, 0)])
def test_kept_models_leave_before_a_training_of_its_own(counted, kept, monkeypatch):
    traces = Traces()
    lent(traces, plain, DEFAULT)
    monkeypatch.setattr(device_memory, "bytes_now", lambda: counted)
    with traces.lent(headed(Own(4)), DEFAULT, lambda: pytest.fail("made")):
        assert len(traces) == kept


def test_reuse_is_turned_off_by_name():
    hypermodel = kbatch.HyperModel(plain)
    assert hypermodel.reuse_traces
    hypermodel.reuse_traces = False
    assert not hypermodel.terms.reuse_traces
    with pytest.raises(SearchError, match="`reuse_traces` must be True or False"):
        hypermodel.reuse_traces = "no"
