"""Growing batches and falling rates in real trainings: sizes, rates, examples and epochs."""

import itertools
import math

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.callbacks import batch_schedule as callbacks_batch_schedule
from kbatch.errors import ModelError, RecipeError
from kbatch.models.gradient_noise import NoiseMeter
from kbatch.recipe_words import BatchGrowth
from kbatch.results.loading import load_records
from kbatch.rules import batch_schedule, scaling

N = 240


class Seen(keras.Sequential):
    """Notes the examples and the learning rate of every step that runs, and every trace."""

    def train_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        if not hasattr(self, "steps"):
            self.steps, self.traces = [], []
        self.traces.append(x["ids"].shape)

        def note(ids, rate):
            self.steps.append((ids.astype(int).tolist(), float(rate)))
            return np.int64(0)

        noted = tf.numpy_function(note, [x["ids"], self.optimizer.learning_rate + 0.0], tf.int64)
        with tf.control_dependencies([noted]):
            return super().train_step(data)


class Ids(keras.layers.Layer):
    """Keeps the points of a dict of points and numbers."""

    def call(self, x):
        return x["points"]


def build(hp=None):
    model = Seen([Ids(), keras.layers.Dense(1, dtype="float32")])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(N + 40, 3)).astype("float32")
    y = points @ np.float32([[1.0], [-2.0], [0.5]])
    x = {"points": points, "ids": np.arange(N + 40)}
    return (
        ({name: each[:N] for name, each in x.items()}, y[:N]),
        ({name: each[N:] for name, each in x.items()}, y[N:]),
    )


class Epochs(keras.callbacks.Callback):
    """Updates at the end of each epoch, the weights after each update, and the rates it is shown.

    It counts the fits and the epochs.
    """

    def __init__(self, passes=1):
        super().__init__()
        self.passes, self.steps, self.fits = passes, 0, 0
        self.ends, self.weights, self.shown = [], [], []

    def on_train_begin(self, logs=None):
        self.fits += 1

    def on_epoch_begin(self, epoch, logs=None):
        self.shown.append(float(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps % self.passes == 0:
            self.weights.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append(self.steps // self.passes)
        assert not self.model.stop_training or self.model.stop_training is True


def trained(recipe, data, *, callbacks=(), x=None, y=None, **how):
    (own_x, own_y), validation = data
    model, outcome = kbatch.train(
        recipe,
        build,
        own_x if x is None else x,
        own_y if x is None else y,
        validation,
        metric="val_mae",
        callbacks=list(callbacks),
        **how,
    )
    return model, outcome


def recipe_of(**fields):
    return Recipe(**{"batch_size": 48, "optimizer": "sgd", "learning_rate": 0.02, **fields})


KINDS = ("linear:8", "exponential:8", "steps:8", "plateau:8")


@pytest.fixture(scope="module", params=KINDS)
def by_epochs(request, data):
    """A training of twelve passes, its steps, its callback, its recipe and its outcome."""
    recipe, epochs = recipe_of(batch_schedule=request.param), Epochs()
    model, outcome = trained(recipe, data, callbacks=[epochs], epochs=12)
    return model, outcome, epochs, recipe


def test_epochs_are_passes_and_every_example_counts(by_epochs):
    model, outcome, epochs, _ = by_epochs
    ids = list(itertools.chain.from_iterable(step[0] for step in model.steps))
    assert outcome.examples == len(ids)
    assert outcome.updates == len(model.steps)
    assert 12 * N <= len(ids) < 12 * N + len(model.steps[-1][0])
    passes = np.array(ids[: 12 * N]).reshape(12, N)
    assert (np.sort(passes) == np.arange(N)).all()
    done = np.cumsum([len(step[0]) for step in model.steps])
    first_past = [1 + int(np.argmax(done >= (epoch + 1) * N)) for epoch in range(12)]
    assert epochs.ends == first_past
    assert epochs.fits == 1
    assert len(outcome.curve) == 12


def test_the_rate_of_each_batch_is_the_rule_of_its_size(by_epochs):
    model, outcome, epochs, recipe = by_epochs
    sizes = [len(step[0]) for step in model.steps]
    assert (sizes[0], sizes) == (6, sorted(sizes))
    wanted = [0.02 * size / 48 for size in sizes]
    np.testing.assert_allclose([step[1] for step in model.steps], wanted, rtol=1e-6)
    assert outcome.final_learning_rate == pytest.approx(wanted[-1])
    assert set(epochs.shown) == {np.float32(0.02)}
    assert float(model.optimizer.learning_rate) == np.float32(0.02)
    assert not any("learning rate ended" in remark for remark in outcome.remarks)
    growth = recipe.growth
    if growth.kind != "plateau":
        assert sizes[-1] == 48
        done = np.cumsum([0, *sizes[:-1]]) / (12 * N)
        assert sizes == [batch_schedule.at(growth.kind, share, 48, 8) for share in done]


def test_a_growing_batch_is_traced_as_often_as_a_constant_one(by_epochs, constant):
    """Twice: Keras traces again once the first trace has made the optimizer's variables."""
    traces = by_epochs[0].traces
    assert len(traces) == len(constant.traces) <= 2
    assert all(shape.as_list() == [None] for shape in traces)


@pytest.fixture(scope="module")
def constant(data):
    return trained(recipe_of(), data, epochs=1)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_grows_over_seconds(kind, data):
    epochs = Epochs()
    model, outcome = trained(
        recipe_of(batch_schedule=kind, schedule="cosine"), data, callbacks=[epochs], seconds=0.4
    )
    sizes = [len(step[0]) for step in model.steps]
    assert (outcome.ended, sizes[0], sizes) == ("horizon", 6, sorted(sizes))
    if not kind.startswith("plateau"):
        assert max(sizes) > 6
    assert max(sizes) <= 48
    assert outcome.examples == sum(sizes)
    assert outcome.updates == len(sizes)
    shares = np.array([step[1] for step in model.steps]) / 0.02 * 48 / np.array(sizes)
    assert shares[0] == pytest.approx(1)
    assert (np.diff(shares) <= 1e-6).all()
    assert 0 < shares[-1] < 0.5
    assert outcome.final_learning_rate == pytest.approx(model.steps[-1][1])
    assert outcome.from_dict(outcome.to_dict()) == outcome
    done = np.cumsum(sizes)[np.array(epochs.ends[:-1], int) - 1]
    assert (done >= N * np.arange(1, len(done) + 1)).all()
    assert (done < N * np.arange(1, len(done) + 1) + 48).all()


@pytest.mark.parametrize("schedule", ["cosine", "steps"])
def test_the_rate_falls_after_warmup_over_the_rest(schedule, data):
    recipe = recipe_of(schedule=schedule, warmup_updates=8)
    model, outcome = trained(recipe, data, epochs=10)
    rates = [step[1] / 0.02 for step in model.steps]
    updates = 10 * N // 48
    wanted = [(update + 1) / 9 for update in range(8)]
    left = updates - 8
    wanted += [scaling.decay_factor(schedule, update / left) for update in range(left)]
    np.testing.assert_allclose(rates, wanted, rtol=1e-4, atol=1e-7)
    assert outcome.final_learning_rate == pytest.approx(0.02 * wanted[-1], rel=1e-4)
    assert not any("learning rate ended" in remark for remark in outcome.remarks)


def test_a_callback_sets_the_full_rate_and_the_schedules_follow(data):
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 * 0.5**epoch)
    recipe = recipe_of(schedule="cosine", batch_schedule="linear:4")
    model, outcome = trained(recipe, data, epochs=4, callbacks=[halved, epochs := Epochs()])
    sizes = [len(step[0]) for step in model.steps]
    done, epoch, wanted = 0, 0, []
    for update, size in enumerate(sizes):
        epoch += update == epochs.ends[epoch]
        share = scaling.decay_factor("cosine", done / (4 * N)) * size / 48
        wanted.append(0.02 * 0.5**epoch * share)
        done += size
    np.testing.assert_allclose([step[1] for step in model.steps], wanted, rtol=1e-5)
    assert any("learning rate ended" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_accumulation_equals_the_same_whole_batches(optimizer, data):
    fields = {"optimizer": optimizer, "batch_schedule": "steps:8", "schedule": "cosine"}
    found = {}
    for passes, micro in ((1, None), (4, 16)):
        epochs = Epochs(passes)
        recipe = recipe_of(batch_size=64, micro_batch_size=micro, **fields)
        model, outcome = trained(recipe, data, callbacks=[epochs], epochs=6)
        ids = [step[0] for step in model.steps]
        found[passes] = epochs.weights, list(itertools.chain.from_iterable(ids)), outcome
        assert {len(step) for step in ids} == {size // passes for size in (8, 16, 32, 64)}
    assert found[1][1] == found[4][1]
    assert len(found[1][0]) == len(found[4][0]) == found[4][2].updates
    for whole, accumulated in zip(found[1][0], found[4][0], strict=True):
        for one, other in zip(whole, accumulated, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_growth_is_sgd_of_the_same_batches_in_numpy(data):
    recipe = recipe_of(batch_schedule="exponential:8")
    model, _ = trained(recipe, data, callbacks=[epochs := Epochs()], epochs=3)
    (x, y), _ = data
    # from the second update on, since nobody noted the weights before the first
    kernel, bias = (each.astype(float) for each in epochs.weights[1])
    moved = [after - before for before, after in zip(*epochs.weights[:2], strict=True)]
    for number, (ids, rate) in list(enumerate(model.steps))[2:]:
        points, error = x["points"][ids], x["points"][ids] @ kernel + bias - y[ids]
        gradients = 2 * points.T @ error / len(ids), 2 * error.mean(0)
        moved = [0.9 * m - rate * g for m, g in zip(moved, gradients, strict=True)]
        kernel, bias = kernel + moved[0], bias + moved[1]
        np.testing.assert_allclose(kernel, epochs.weights[number][0], atol=1e-5)
        np.testing.assert_allclose(bias, epochs.weights[number][1], atol=1e-5)


def test_a_dataset_with_weights_grows_too(data):
    (x, y), _ = data
    dataset = tf.data.Dataset.from_tensor_slices((x, y, np.ones(N, "float32"))).batch(7)
    model, outcome = trained(
        recipe_of(batch_schedule="linear:8", micro_batch_size=24),
        data,
        x=dataset,
        epochs=4,
        batched=True,
    )
    ids = list(itertools.chain.from_iterable(step[0] for step in model.steps))
    assert (np.sort(np.array(ids[: 4 * N]).reshape(4, N)) == np.arange(N)).all()
    assert outcome.examples == len(ids)
    assert all(shape.as_list() == [None] for shape in model.traces)
    assert len(model.traces) <= 2


def test_a_batch_grows_with_the_noise_scale_and_never_shrinks(data):
    measured = iter([None, None, 5.0, 20.0, 3.0, 47.0, *[1000.0] * 3, *[8.0] * 1000])
    choose = callbacks_batch_schedule.by_noise(
        BatchGrowth("noise", 8.0), 48, 2, lambda: next(measured)
    )
    found = [choose(0) for _ in range(12)]
    assert found == [6, 6, 6, 20, 20, 36, 48, 48, 48, 48, 48, 48]


@pytest.mark.parametrize(("noise", "mean_size"), [(0.0, 8), (1e9, 40)])
def test_a_batch_grows_by_the_noise_measured_meanwhile(data, monkeypatch, noise, mean_size):
    (x, y), (x_val, y_val) = data
    monkeypatch.setattr(NoiseMeter, "noise_scale", lambda self: noise)
    _, outcome = kbatch.train(
        recipe_of(batch_schedule="noise:6", micro_batch_size=12),
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        x["points"],
        y,
        (x_val["points"], y_val),
        metric="val_mae",
        loss="mse",
        metrics=["mae"],
        epochs=20,
    )
    assert outcome.noise_scale == noise
    mean = outcome.examples / outcome.updates
    assert mean == mean_size if noise == 0 else mean > mean_size


def test_a_batch_never_grows_by_a_noise_that_is_not_measured(data):
    with pytest.raises(RecipeError, match="two passes or more"):
        recipe_of(batch_schedule="noise:8")
    with pytest.raises(ModelError, match=r"Keras' own train_step.*Received: .*Seen"):
        trained(recipe_of(batch_schedule="noise:8", micro_batch_size=12), data, epochs=4)


def test_the_end_by_a_callback_is_not_the_end_of_a_pass(data):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # at the very update that ends the first pass
            self.done = getattr(self, "done", 0) + 1
            if self.done == 40:
                self.model.stop_training = True

    epochs = Epochs()
    _, outcome = trained(
        recipe_of(batch_schedule="linear:8"), data, callbacks=[Stop(), epochs], epochs=8
    )
    assert (outcome.ended, outcome.stopped_by, outcome.updates) == ("callback", "Stop", 40)
    assert outcome.examples == 240
    assert epochs.ends == [40]


def classifier(hp=None):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.slow
def test_schedules_are_axes_of_a_search(points, tmp_path):
    space = Space(
        batch_schedule=("constant", "exponential:4"),
        schedule=("constant", "cosine"),
        batch_size=64,
        micro_batch_size=32,
        policy="float32",
        optimizer="sgd",
        recompute="minimal",
        jit_compile=False,
    )
    tuner = keras_tuner.GridSearch(
        HyperModel(classifier, space, seconds_per_trial=0.3),
        objective=kbatch.objective(),
        max_trials=4,
        directory=tmp_path,
        project_name="p",
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, verbose=0)
    records = load_records(tmp_path / "p")
    assert {record.recipe.batch_schedule for record in records} == {"constant", "exponential:4"}
    assert {record.recipe.schedule for record in records} == {"constant", "cosine"}
    for record in records:
        recipe, outcome = record.recipe, record.outcome
        assert outcome.ended == "horizon"
        full = outcome.examples / recipe.batch_size
        grown = recipe.batch_schedule != "constant"
        assert full < outcome.updates if grown else full == outcome.updates
    best = kbatch.best_recipe(tuner)
    assert Recipe.from_json(best.to_json()) == best


def test_the_default_rule_of_the_optimizer_is_taken(data):
    model, _ = trained(
        recipe_of(batch_schedule="linear:8", optimizer="adam", warmup_updates=3), data, epochs=2
    )
    for update, (ids, rate) in enumerate(model.steps):
        share = math.sqrt(len(ids) / 48) * min((update + 1) / 4, 1)
        assert rate == pytest.approx(0.02 * share, rel=1e-5)
