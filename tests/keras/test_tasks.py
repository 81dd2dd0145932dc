"""Models that compile and preprocess by themselves, as the tasks of keras-hub do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kbatch
from kbatch import Recipe, recompute
from kbatch.errors import DataError, ModelError, RecomputeError
from kbatch.models import preprocessor
from kbatch.models.preprocessor import preprocess_of, preprocessed, put_back, take_off
from kbatch.standin.copies import Copies, copies_of
from kbatch.training.arguments import FitArguments

WORDS = np.array(["up", "down"])
rng = np.random.default_rng(0)
Y = rng.integers(0, 2, 96)
TEXTS = np.array([" ".join(rng.permutation([WORDS[each], "and", "so", "on"])) for each in Y])


class Lengths:
    """A preprocessor: each text becomes the lengths of its words."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def __call__(self, x, y=None, sample_weight=None):
        split = tf.strings.split(x).to_tensor(shape=(None, 4))
        lengths = tf.cast(tf.strings.length(split), "float32")
        lengths += self.noise * tf.random.uniform(tf.shape(lengths))
        return keras.utils.pack_x_y_sample_weight(lengths, y, sample_weight)


class Task(keras.Model):
    """Compiles itself, and preprocesses what `fit` and `evaluate` are given."""

    def __init__(self, preprocessor=None):
        inputs = keras.Input((4,))
        super().__init__(inputs, layers.Dense(2, name="head")(inputs))
        self.preprocessor = preprocessor
        self.temperature = None
        self.compile()

    def compile(
        self, optimizer="auto", loss="auto", metrics=("accuracy",), temperature=1.0, **more
    ):
        optimizer = keras.optimizers.Adam(1e-2) if optimizer == "auto" else optimizer
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        super().compile(optimizer=optimizer, loss=loss, metrics=list(metrics), **more)
        self.temperature = temperature

    def preprocess_samples(self, x, y=None, sample_weight=None):
        if self.preprocessor is None:
            return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
        return self.preprocessor(x, y, sample_weight)

    def fit(self, x, y=None, sample_weight=None, **more):
        return super().fit(self._seen(x, y, sample_weight), **more)

    def evaluate(self, x, y=None, sample_weight=None, **more):
        return super().evaluate(self._seen(x, y, sample_weight), **more)

    def _seen(self, *parts):
        data = parts[0]
        if not isinstance(data, tf.data.Dataset):
            given = tuple(each for each in parts if each is not None)
            data = tf.data.Dataset.from_tensor_slices(given).batch(32)
        return data.map(self.preprocess_samples)


def seen(x=TEXTS):
    return Lengths()(x).numpy()


def trained(build, x, recipe=None, **more):
    given = {"updates": 6, "metric": "val_accuracy", **more}
    return kbatch.train(recipe or Recipe(16), build, x, Y, (x[:32], Y[:32]), **given)


def test_a_preprocessor_is_run_once_and_changes_no_weight():
    model, _ = trained(lambda: Task(Lengths()), TEXTS)
    other, _ = trained(lambda: Task(), seen())
    assert all(map(np.array_equal, model.get_weights(), other.get_weights()))
    assert isinstance(model.preprocessor, Lengths)  # so that it still takes texts
    assert model.evaluate(TEXTS, Y, verbose=0, return_dict=True)["accuracy"] >= 0


def test_what_is_seen_is_what_fit_would_see():
    model = Task(Lengths())
    parts = preprocessed(preprocess_of(model), TEXTS, Y)
    assert np.array_equal(parts[0], seen())
    assert np.array_equal(parts[1], Y)
    batches = tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(7)
    first, labels = next(iter(preprocessed(preprocess_of(model), batches)))
    assert np.array_equal(first, seen()[:7])
    assert np.array_equal(labels, Y[:7])


@pytest.mark.parametrize("seeded", [False, True])
def test_what_draws_at_random_is_drawn_in_each_pass(seeded):
    tf.random.set_seed(1 if seeded else None)
    found = preprocessed(Lengths(noise=0.5), TEXTS, Y)
    assert isinstance(found, tf.data.Dataset)
    passes = [np.stack([x for x, _ in found.as_numpy_iterator()]) for _ in range(2)]
    assert passes[0].shape == (96, 4)
    assert seeded or not np.array_equal(*passes)  # TensorFlow repeats them under a global seed
    tf.random.set_seed(None)


def ragged(x, y=None, sample_weight=None):
    """Pads to the longest text of a batch only."""
    split = tf.strings.split(x).to_tensor()
    return keras.utils.pack_x_y_sample_weight(tf.strings.length(split), y, sample_weight)


def test_what_cannot_be_preprocessed_is_refused(tmp_path):
    long = np.array(["a b"] * 256 + ["a b c"])
    with pytest.raises(DataError, match="one shape.*sequence_length"):
        preprocessed(ragged, long)
    preprocess = Lengths()
    with pytest.raises(DataError, match="sample_weight without y"):
        FitArguments(TEXTS, sample_weight=np.ones(96)).preprocessed_by(preprocess)
    with pytest.raises(DataError, match="a PyDataset"):
        FitArguments(keras.utils.PyDataset()).preprocessed_by(preprocess)


def test_what_takes_too_many_bytes_is_preprocessed_in_each_pass(monkeypatch):
    monkeypatch.setattr(preprocessor, "MOST_BYTES", 96 * (4 * 4 + 8))
    assert isinstance(preprocessed(Lengths(), TEXTS, Y), tuple)
    monkeypatch.setattr(preprocessor, "MOST_BYTES", 96 * (4 * 4 + 8) - 1)
    found = preprocessed(Lengths(), TEXTS, Y)
    assert np.array_equal(np.stack([x for x, _ in found.as_numpy_iterator()]), seen())


def test_a_preprocessor_that_was_taken_off_is_put_back():
    model = Task(Lengths())
    own = model.preprocessor
    take_off(model)
    assert model.preprocessor is None
    assert preprocess_of(model) is not None
    put_back(model)
    assert model.preprocessor is own
    plain = keras.Sequential([layers.Dense(1)])
    take_off(plain)
    assert preprocess_of(plain) is None


def test_a_dataset_of_texts_is_searched_and_kept_whole(tmp_path):
    data = tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(16)
    tuner = kbatch.Tuner(
        kbatch.HyperModel(lambda: Task(Lengths()), seconds_per_trial=0.2), directory=tmp_path
    )
    tuner.search(data, validation_data=(TEXTS[:32], Y[:32]), max_trials=1, verbose=0)
    assert tuner.get_best_models()[0].evaluate(TEXTS, Y, verbose=0)


def test_a_task_is_tuned_as_its_fit_was_called(tmp_path):
    task = Task(Lengths())
    tuned = kbatch.tune(
        task,
        TEXTS,
        Y,
        validation_data=(TEXTS[:32], Y[:32]),
        epochs=2,
        max_trials=1,
        seconds_per_trial=0.2,
        confirm_seeds=0,
        directory=tmp_path,
        verbose=0,
    )
    assert len(tuned.history.history["val_accuracy"]) == 2
    assert isinstance(task.preprocessor, Lengths)


def test_what_else_a_compile_of_its_own_sets_stays():
    def build():
        task = Task()
        task.compile("sgd", temperature=0.5)
        return task

    model, outcome = trained(build, seen())
    assert model.temperature == 0.5
    assert outcome.value is not None


def test_a_model_that_compiles_itself_takes_another_loss():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model, _ = trained(lambda: Task(), seen(), loss=loss)
    assert model.loss.reduction == "sum"


class Pair(Task):
    def compile(self, *args, **more):
        super().compile(*args, **more)
        self.critic_optimizer = keras.optimizers.SGD()


class Own(Task):
    def compile(self, *args, **more):
        super().compile("sgd")
        self.optimizer = keras.optimizers.Adam()


@pytest.mark.parametrize(("kind", "says"), [(Pair, "critic_optimizer"), (Own, "did not get")])
def test_a_second_optimizer_is_refused(kind, says):
    with pytest.raises(ModelError, match=says):
        trained(lambda: kind(), seen())


class Scaled(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale


class Shifted(layers.Layer):
    def build(self, shape):
        self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros")

    def call(self, x):
        return x + self.shift


def test_layers_that_build_by_themselves_are_made_again():
    model = keras.Sequential([keras.Input((4,)), Scaled(), Shifted(), layers.Dense(1)])
    model.compile("sgd", "mse")
    assert isinstance(copies_of(model), Copies)


def of_any_length():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    for _ in range(4):
        x = layers.Dense(16, "gelu")(x)
    outputs = layers.Dense(2)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def test_a_plan_for_the_longest_input_holds_at_any_length():
    model = of_any_length()
    with pytest.raises(RecomputeError, match="Pass x="):
        recompute.plan(model, 16)
    long, short = (rng.integers(0, 50, (16, length)) for length in (64, 8))
    plan = recompute.plan(model, 16, x=long)
    assert plan.peak_bytes > recompute.plan(model, 16, x=short).peak_bytes
    for x in (long, short):
        assert recompute.verify(model, plan, x, Y[:16]).exact
    best = recompute._measure.candidates(model, 16, None, long)
    assert plan in best


def test_a_recipe_plans_for_the_lengths_of_the_data():
    tokens = rng.integers(0, 50, (96, 12))
    plain, _ = trained(of_any_length, tokens)
    model, _ = trained(of_any_length, tokens, Recipe(16, recompute="minimal"))
    assert recompute.applied(model) is not None
    assert all(map(np.array_equal, plain.get_weights(), model.get_weights()))
