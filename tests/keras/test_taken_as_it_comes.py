"""Data and models that Keras' `fit` takes train in kbatch too, or are refused with a remedy."""

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.data import validation
from kbatch.errors import DataError
from kbatch.results.loading import load_records
from kbatch.training import arguments

SECONDS = 0.1
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 120)
A, B = (RNG.normal(size=(120, size)).astype("float32") + Y[:, None] for size in (4, 6))
WORDS = np.where(Y, "good film", "bad film")


def compiled(inputs, outputs, loss="binary_crossentropy", metrics=("accuracy",)):
    model = keras.Model(inputs, outputs)
    model.compile("adam", loss, metrics=list(metrics))
    return model


def head(x, name=None):
    return keras.layers.Dense(1, "sigmoid", name=name)(keras.layers.Flatten()(x))


def one_input():
    x = keras.Input((4,))
    return compiled(x, head(x))


def two_inputs():
    a, b = keras.Input((4,)), keras.Input((6,))
    return compiled([a, b], head(keras.layers.Concatenate()([a, b])))


def two_outputs():
    x = keras.Input((4,))
    return compiled(
        x,
        [head(x, "first"), head(x, "second")],
        2 * ["binary_crossentropy"],
        [["accuracy"], ["accuracy"]],
    )


def by_name():
    """A model whose inputs are not in the order of the alphabet, and differ in rank."""
    picture, events = keras.Input((2, 2), name="picture"), keras.Input((6,), name="events")
    return compiled(
        [picture, events],
        head(keras.layers.Concatenate()([keras.layers.Flatten()(picture), events])),
    )


def squeezed():
    x = keras.Input((2, 2))
    return compiled(x, head(x))


def words():
    x = keras.Input((), dtype="string")
    hashed = keras.layers.Hashing(50)(x)
    return compiled(x, head(keras.layers.Embedding(50, 2)(hashed)))


def tokens():
    x = keras.Input((None,), dtype="int32")
    return compiled(
        x,
        head(
            keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 2, mask_zero=True)(x))
        ),
    )


def variable_length():
    specs = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(
        lambda: ((np.full(1 + i % 7, 1 + i % 8), label) for i, label in enumerate(Y)),
        output_signature=specs,
    )


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return A[10 * index : 10 * index + 10], Y[10 * index : 10 * index + 10]


def dataset(x=A, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("build", "x", "y"),
    [
        pytest.param(two_inputs, [A, B], Y, id="list of inputs"),
        pytest.param(two_inputs, (A, B), Y[:, None], id="tuple of inputs", marks=SLOW),
        pytest.param(two_outputs, A, [Y, 1 - Y], id="list of outputs"),
        pytest.param(by_name, {"picture": A.reshape(-1, 2, 2), "events": B}, Y, id="dict"),
        pytest.param(squeezed, A.reshape(-1, 2, 2, 1), Y, id="squeezed", marks=SLOW),
        pytest.param(words, WORDS, Y, id="strings"),
        pytest.param(words, WORDS.astype(object), Y, id="objects", marks=SLOW),
        pytest.param(one_input, dataset().batch(7), None, id="batched", marks=SLOW),
        pytest.param(
            one_input,
            dataset().batch(7, drop_remainder=True).prefetch(2),
            None,
            id="even batches",
            marks=SLOW,
        ),
        pytest.param(
            one_input,
            dataset().filter(lambda x, y: True),
            None,
            id="unknown cardinality",
            marks=SLOW,
        ),
        pytest.param(
            by_name,
            dataset({"picture": A.reshape(-1, 2, 2), "events": B}).batch(7),
            None,
            id="batched dict",
        ),
        pytest.param(squeezed, dataset(A.reshape(-1, 2, 2, 1)), None, id="squeezed dataset"),
        pytest.param(
            squeezed,
            dataset(A.reshape(-1, 2, 2, 1)).batch(5),
            None,
            id="squeezed batches",
            marks=SLOW,
        ),
        pytest.param(words, dataset(WORDS).batch(5), None, id="batched strings", marks=SLOW),
        pytest.param(tokens, variable_length().padded_batch(8), None, id="padded batches"),
        pytest.param(one_input, Batches(), None, id="PyDataset"),
    ],
)
def test_it_trains(build, x, y):
    validation = (x, y) if y is not None else x
    judged = (
        {"metric": "val_first_accuracy", "chance": 0.5, "direction": "max"}
        if build is two_outputs
        else {}
    )
    _, outcome = kbatch.train(Recipe(16), build, x, y, validation, seconds=SECONDS, **judged)
    assert outcome.ended == "horizon"
    assert outcome.updates > 1


def test_pictures_of_a_directory_train_as_given(tmp_path):
    for kind, level in (("dark", 40), ("light", 200)):
        (tmp_path / kind).mkdir()
        for number in range(12):
            keras.utils.save_img(
                tmp_path / kind / f"{number}.png", np.full((8, 8, 3), level + number), scale=False
            )
    train, validation = keras.utils.image_dataset_from_directory(
        tmp_path,
        image_size=(8, 8),
        batch_size=5,
        validation_split=0.25,
        subset="both",
        seed=1,
        verbose=False,
    )

    def build():
        x = keras.Input((8, 8, 3))
        return compiled(x, head(keras.layers.Rescaling(1 / 255)(x)))

    _, outcome = kbatch.train(Recipe(8), build, train, validation_data=validation, seconds=SECONDS)
    assert outcome.ended == "horizon"


def test_what_the_model_does_not_tell_must_be_said():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, "sigmoid")

        def call(self, x):
            return self.dense(x)

    def build():
        model = Own()
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    with pytest.raises(DataError, match="batched=True or batched=False"):
        kbatch.train(Recipe(16), build, dataset().batch(7), validation_data=(A, Y), seconds=SECONDS)
    for given, batched in ((dataset().batch(7), True), (dataset(), None)):
        _, outcome = kbatch.train(
            Recipe(16), build, given, validation_data=(A, Y), seconds=SECONDS, batched=batched
        )
        assert outcome.ended == "horizon"


def search(directory, x, y=None, build=one_input, max_trials=3, validation_data=(A, Y), **more):
    hypermodel = HyperModel(
        build, Space(batch_size=(8, 16, 32), policy="float32"), seconds_per_trial=SECONDS
    )
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        kbatch.objective(),
        max_trials=max_trials,
        seed=1,
        directory=directory,
        project_name="p",
    )
    tuner.search(x, y, validation_data=validation_data, verbose=0, **more)
    return load_records(directory / "p")


def test_all_trials_prepare_their_data_once(tmp_path, monkeypatch):
    prepared, passes = [], []

    def generate():
        passes.append(1)
        yield from zip(A, Y, strict=True)

    monkeypatch.setattr(
        arguments, "prepare", lambda *given: prepared.append(1) or validation.prepare(*given)
    )
    specs = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((), tf.int64))
    cached = tf.data.Dataset.from_generator(generate, output_signature=specs).cache()
    assert len(search(tmp_path, cached, max_trials=2)) == 3
    assert (len(prepared), len(passes)) == (1, 1)


def test_text_is_the_same_data_in_every_trial_and_on_resume(tmp_path):
    first, resumed = (
        search(tmp_path, WORDS.astype(object), Y, words, 1, (WORDS.astype(object), Y))
        for _ in range(2)
    )
    assert len(first) == 2
    assert resumed == first


@pytest.mark.slow
def test_a_dataset_without_a_fixed_order_can_be_resumed(tmp_path):
    loose = tf.data.Options()
    loose.deterministic = False
    given = (
        dataset()
        .interleave(
            lambda x, y: dataset(x[None], y[None]),
            num_parallel_calls=2,
            cycle_length=4,
            deterministic=False,
        )
        .with_options(loose)
    )
    for trials in (1, 2):
        assert (
            len(
                search(
                    tmp_path,
                    given.apply(tf.data.experimental.assert_cardinality(120)),
                    max_trials=trials,
                )
            )
            == trials + 1
        )


def test_numpys_numbers_are_arguments():
    parsed = arguments.FitArguments.parse(
        (A, Y),
        {
            "epochs": np.int64(2),
            "validation_split": np.float32(0.2),
            "validation_batch_size": np.int64(8),
        },
    )
    assert type(parsed.epochs) is int
    assert parsed.data().training.examples == 96
