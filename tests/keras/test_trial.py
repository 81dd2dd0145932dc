"""How trials of a real search end: horizon, out of memory, a callback, a bug or a crash."""

import gc
import shutil
from statistics import mean

import keras
import keras_tuner
import pytest
import tensorflow as tf
from short_searches import build, search, tuner_of

from kbatch import Space
from kbatch.results.loading import load_records
from kbatch.runtime import device_memory


def test_out_of_memory_and_nan_do_not_stop_a_search(points, tmp_path):
    class Hungry(keras.layers.Layer):
        def call(self, x, training=False):
            if training and self.compute_dtype == "float16":
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return x

    def hungry():
        return keras.Sequential(
            [keras.Input((12,)), Hungry(), keras.layers.Dense(1, "sigmoid", dtype="float32")]
        )

    space = Space(policy="mixed_float16", batch_size=(16, 32, 64))
    arguments = {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
    # three in a row: as many failed trials as end a search of KerasTuner's
    tuner = search(tuner_of(tmp_path, model=hungry, space=space, max_trials=3, **arguments), points)
    assert [record.outcome.ended for record in load_records(tmp_path / "p")] == ["horizon"] + 3 * [
        "out_of_memory"
    ]
    assert all(trial.status == "COMPLETED" for trial in tuner.oracle.trials.values())


@pytest.fixture(scope="module")
def picked(points, tmp_path_factory):
    """A search whose second combination `build` refuses, and whose third has no memory for it."""

    def picky(hp):
        kind = hp.Choice("kind", ["good", "bad", "large", "fine"])
        if kind == "bad":
            raise keras_tuner.errors.FailedTrialError("not this one")
        if kind == "large":
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return build(keras_tuner.HyperParameters())

    directory = tmp_path_factory.mktemp("picked")
    space = Space(batch_size=32, policy="float32", optimizer="adam", learning_rate={"adam": 1e-3})
    tuner = tuner_of(directory, keras_tuner.GridSearch, model=picky, space=space, max_trials=6)
    return search(tuner, points), directory


def test_out_of_memory_in_build_is_an_outcome_too(picked):
    ended = {record.trial: record.outcome.ended for record in load_records(picked[1] / "p")}
    # trial 1 was refused, and has no record
    assert ended == {-1: "horizon", 0: "horizon", 2: "out_of_memory", 3: "horizon"}


def test_a_search_goes_on_after_a_combination_that_build_refuses(picked):
    statuses = {
        trial.hyperparameters.get("kind"): trial.status
        for trial in picked[0].oracle.trials.values()
    }
    assert statuses == {
        "good": "COMPLETED",
        "bad": "FAILED",
        "large": "COMPLETED",
        "fine": "COMPLETED",
    }


def test_a_bug_in_build_stops_the_search_and_is_no_crash(points, tmp_path):
    def buggy(hp):
        if hp.Int("width", 8, 24, step=8) > 8:  # the baseline has the lowest
            raise ZeroDivisionError("a bug")
        return build(hp)

    with pytest.raises(keras_tuner.errors.FatalError, match="ZeroDivisionError: a bug"):
        search(tuner_of(tmp_path, model=buggy, max_trials=10), points)


@pytest.fixture(scope="module")
def stopped(points, tmp_path_factory):
    """A search whose trainings a callback stops, long before their horizon of five seconds."""
    directory = tmp_path_factory.mktemp("stopped")
    tuner = tuner_of(directory, max_trials=1, seed=1, seconds=5.0)
    return search(tuner, points, callbacks=stopping()), directory


def stopping():
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10.0)
    return [keras.callbacks.Callback(), stop]


def test_a_callback_that_stops_a_training_is_named(stopped):
    outcomes = [record.outcome for record in load_records(stopped[1] / "p")]
    assert [(outcome.ended, outcome.stopped_by) for outcome in outcomes] == 2 * [
        ("callback", "EarlyStopping")
    ]


def test_weights_of_a_trial_that_a_callback_ended_are_kept(stopped, points):
    tuner, directory = stopped
    record = load_records(directory / "p")[1]
    assert tuner.get_best_models()[0].evaluate(*points[1], verbose=0)[1] == pytest.approx(
        record.outcome.value
    )


def test_a_trial_whose_process_died_twice_scores_zero(stopped, points, tmp_path):
    shutil.copytree(stopped[1], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "p" / "kbatch" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # the baseline, and the trial begun twice
    path.write_text("".join([*lines[:2], lines[2], lines[2]]))
    for file in [*(tmp_path / "p").glob("*.json"), *(tmp_path / "p").glob("trial_*/trial.json")]:
        file.unlink()
    tuner = tuner_of(tmp_path, max_trials=1, seed=1, seconds=5.0)
    search(tuner, points, callbacks=stopping())
    record = load_records(tmp_path / "p")[1]
    assert (record.outcome.ended, record.score) == ("crashed", 0.0)


@pytest.mark.slow
def test_no_memory_grows_over_trials(points, tmp_path):
    class Bytes(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return self

        def on_train_begin(self, logs=None):
            seen.append(device_memory.bytes_now())

    def wide(hp):
        layers = [
            keras.Input((12,)),
            keras.layers.Dense(1000, "gelu"),
            keras.layers.Dense(250, "gelu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
        model = keras.Sequential(layers)
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    seen = []
    gc.collect()  # what other tests left behind
    if device_memory.bytes_now() is None:
        pytest.skip("this device cannot tell its bytes")
    space = Space(batch_size=32, policy="float32", optimizer="adam")
    search(
        tuner_of(tmp_path, model=wide, space=space, max_trials=8, seconds=0.1),
        points,
        callbacks=[Bytes()],
    )
    assert len(seen) == 9
    model_bytes = 4 * (12 * 1000 + 1000 * 250)
    # A trial begins with or without the last one's model still alive: up to three model_bytes, with
    # its slots. So the means of both halves are compared, which differed by up to a half without a
    # leak; a leak would add four models' weights and slots between them, and still two models'
    # weights if it were of weights alone and in every second trial.
    assert mean(seen[5:]) - mean(seen[1:5]) < 1.5 * model_bytes, seen
