"""A search remembers what it was given: confirm and retrain take it, or ask for it by name."""

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.errors import KbatchError, ProjectChangedError, RecipeError, SearchError
from kbatch.results.loading import load_records

SPACE = kbatch.Space(batch_size=(16, 32), policy="float32", optimizer="sgd")
WEIGHTS = {0: 1.0, 1: 2.0}


def build(hp):
    width = hp.Int("width", 4, 16, step=4, default=8)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(width, "relu")])
    model.add(keras.layers.Dense(1, "sigmoid"))
    model.compile(keras.optimizers.SGD(0.05), "binary_crossentropy", metrics=["accuracy"])
    return model


def cooled(epoch, rate):
    return rate if epoch < 1 else rate * 0.1


def callbacks(patience=50):
    return [
        keras.callbacks.LearningRateScheduler(cooled),
        keras.callbacks.EarlyStopping("val_loss", patience=patience),
    ]


def examples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 12)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


X, Y = examples()
HELD_OUT = {"validation_data": (X[160:], Y[160:])}
ALL = {"x": X[:160], "y": Y[:160], **HELD_OUT, "class_weight": WEIGHTS}


def tuner_in(folder):
    return keras_tuner.RandomSearch(
        kbatch.HyperModel(build, SPACE, seconds_per_trial=0.25),
        objective=kbatch.objective(),
        max_trials=1,
        directory=str(folder),
        seed=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("searched")


@pytest.fixture(scope="module")
def searched(folder):
    tuner = tuner_in(folder)
    tuner.search(**ALL, callbacks=callbacks(), verbose=0)
    return tuner


@pytest.fixture
def reopened(searched, folder):
    """The tuner as another process makes it."""
    return tuner_in(folder)


def test_a_search_in_memory_needs_nothing_again(searched):
    kbatch.confirm(searched, top=1, seeds=1)
    for record in load_records(searched):
        outcome = record.outcome
        assert outcome.learning_rate == pytest.approx(record.recipe.learning_rate or 0.05)
        assert outcome.final_learning_rate < outcome.learning_rate
        assert any("a callback set it" in remark for remark in outcome.remarks)


def test_the_winner_is_trained_as_in_the_search(searched):
    best = kbatch.report(searched).best
    model, outcome = kbatch.retrain(searched, epochs=3)
    assert model.layers[0].units == best.values["width"]
    assert outcome.examples == 3 * 160
    assert outcome.final_learning_rate < best.recipe.learning_rate
    own, _ = kbatch.train(
        best.recipe,
        build,
        **ALL,
        callbacks=callbacks(),
        epochs=3,
        values={"width": best.values["width"]},
    )
    for one, other in zip(model.get_weights(), own.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


CALLS = {
    "confirm": lambda tuner, **given: kbatch.confirm(tuner, top=1, seeds=1, **given),
    "retrain": lambda tuner, **given: kbatch.retrain(tuner, updates=2, **given),
}
MISSING = {
    "everything": (
        lambda: {},
        "x, y, validation_data, class_weight, callbacks .LearningRateScheduler, EarlyStopping.",
    ),
    "callbacks": (lambda: ALL, "without callbacks .LearningRateScheduler"),
    "class_weight": (
        lambda: {**ALL, "class_weight": None, "callbacks": callbacks()},
        "without class_weight",
    ),
}
OTHER = {
    "a callback less": lambda: {"callbacks": callbacks()[:1]},
    "no callback": lambda: {"callbacks": []},
    "another patience": lambda: {"callbacks": callbacks(3)},
    "another weight": lambda: {"class_weight": {0: 1.0, 1: 3.0}},
    "other examples": lambda: {"x": X[:80], "y": Y[:80]},
    "other values": lambda: {"x": 2 * X[:160], "y": Y[:160]},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", MISSING)
def test_a_new_process_is_told_what_it_lacks(call, case, reopened):
    given, text = MISSING[case]
    with pytest.raises(SearchError, match=text):
        CALLS[call](reopened, **given())


@pytest.mark.parametrize("call", CALLS)
def test_a_new_process_that_has_all_goes_on(call, reopened):
    assert CALLS[call](reopened, **ALL, callbacks=callbacks()) is not None


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", OTHER)
def test_what_differs_from_the_search_is_refused(call, case, searched):
    with pytest.raises(ProjectChangedError):
        CALLS[call](searched, **OTHER[case]())


def test_a_resumed_search_must_have_its_callbacks(reopened):
    with pytest.raises(KbatchError, match="no LearningRateScheduler; no EarlyStopping"):
        reopened.search(**ALL, verbose=0)
    reopened.search(**ALL, callbacks=callbacks(), verbose=0)


def test_a_search_goes_on_in_memory_without_its_arguments(searched):
    searched.search(verbose=0)


def test_how_data_were_read_is_remembered(tmp_path):
    pairs = tf.data.Dataset.from_tensor_slices((X[:160], Y[:160])).batch(8)
    tuner = tuner_in(tmp_path)
    tuner.search(pairs, batched=True, verbose=0, **HELD_OUT)
    again = tuner_in(tmp_path)
    assert len(kbatch.confirm(again, pairs, top=1, seeds=1, **HELD_OUT)) == 2


def test_weights_and_a_split_of_examples_are_remembered(tmp_path):
    tuner = tuner_in(tmp_path)
    weights = np.ones(len(X), "float32")
    tuner.search(X, Y, sample_weight=weights, validation_split=0.25, verbose=0)
    assert len(kbatch.confirm(tuner, top=1, seeds=1)) == 2
    again = tuner_in(tmp_path)
    with pytest.raises(SearchError, match="without sample_weight"):
        kbatch.retrain(again, X, Y, updates=1)
    assert kbatch.retrain(again, X, Y, updates=1, sample_weight=weights)[1].updates == 1


def test_train_sends_a_tuner_to_retrain(searched):
    with pytest.raises(RecipeError, match=r"kbatch.retrain\(tuner"):
        kbatch.train(searched, build, X, Y, epochs=1)


def test_retrain_needs_a_search_of_kbatchs():
    with pytest.raises(SearchError, match="needs a search of kbatch's"):
        kbatch.retrain("runs/pets", epochs=1)
