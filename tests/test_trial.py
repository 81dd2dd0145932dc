"""How trials of a real search end: horizon, out of memory, a callback, a bug or a crash."""

import gc

import keras
import keras_tuner
import pytest
import tensorflow as tf
from short_searches import build, search, tuner_of

from kbatch import Space
from kbatch.device import meter
from kbatch.results.loading import load_records


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
    tuner = search(tuner_of(tmp_path, model=hungry, space=space, max_trials=4, **arguments), points)
    assert [record.outcome.ended for record in load_records(tmp_path / "p")] == ["horizon"] + 4 * [
        "out_of_memory"
    ]
    assert all(trial.status == "COMPLETED" for trial in tuner.oracle.trials.values())


def test_out_of_memory_in_build_is_an_outcome_too(points, tmp_path):
    class Trained(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return self

        def on_train_end(self, logs=None):
            trained.append(1)

    def greedy(hp):
        if len(trained) == 2:  # the baseline and the first trial
            trained.append(1)
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return build(hp)

    trained = []
    search(tuner_of(tmp_path, model=greedy, max_trials=3), points, callbacks=[Trained()])
    assert [record.outcome.ended for record in load_records(tmp_path / "p")] == [
        "horizon",
        "horizon",
        "out_of_memory",
        "horizon",
    ]


def test_a_bug_in_build_stops_the_search_and_is_no_crash(points, tmp_path):
    calls = []

    def buggy(hp):
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError("a bug")
        return build(hp)

    with pytest.raises(keras_tuner.errors.FatalError, match="ZeroDivisionError: a bug"):
        for _ in range(5):
            search(tuner_of(tmp_path, model=buggy, max_trials=10), points)


def test_a_trial_whose_process_died_twice_scores_zero(points, tmp_path):
    tuner = tuner_of(tmp_path, max_trials=1, seed=1)
    search(tuner, points)
    path = tmp_path / "p" / "kbatch" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # the baseline, and the trial begun twice
    path.write_text("".join([*lines[:2], lines[2], lines[2]]))
    for file in [*(tmp_path / "p").glob("*.json"), *(tmp_path / "p").glob("trial_*/trial.json")]:
        file.unlink()
    search(tuner_of(tmp_path, max_trials=1, seed=1), points)
    record = load_records(tmp_path / "p")[1]
    assert (record.outcome.ended, record.score) == ("crashed", 0.0)


def test_no_memory_grows_over_trials(points, tmp_path):
    class Bytes(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return self

        def on_train_begin(self, logs=None):
            seen.append(meter.bytes_now())

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
    if meter.bytes_now() is None:
        pytest.skip("this device cannot tell its bytes")
    space = Space(batch_size=32, policy="float32", optimizer="adam")
    search(
        tuner_of(tmp_path, model=wide, space=space, max_trials=12, seconds=0.1),
        points,
        callbacks=[Bytes()],
    )
    assert len(seen) == 13
    model_bytes = 4 * (12 * 1000 + 1000 * 250)
    # A trial begins with or without the last one's model still alive, so the levels of both halves
    # are compared;
    # a leak would add six models' weights and slots between them.
    assert max(seen[7:]) - max(seen[1:7]) < model_bytes, seen


def test_early_stopping_ends_a_trial_and_weights_are_kept(points, tmp_path):
    stopping = keras.callbacks.EarlyStopping("val_accuracy", patience=1)
    tuner = search(tuner_of(tmp_path, max_trials=1, seconds=20.0), points, callbacks=[stopping])
    record = load_records(tmp_path / "p")[1]
    assert record.outcome.ended == "callback"
    assert tuner.get_best_models()[0].evaluate(*points[1], verbose=0)[1] == pytest.approx(
        record.outcome.value
    )


def test_a_search_goes_on_after_a_combination_that_build_refuses(points, tmp_path):
    def picky(hp):
        if hp.Choice("kind", ["good", "bad"]) == "bad":
            raise keras_tuner.errors.FailedTrialError("not this one")
        return build(keras_tuner.HyperParameters())

    space = Space(batch_size=32, policy="float32", optimizer="adam", learning_rate={"adam": 1e-3})
    tuner = search(
        tuner_of(tmp_path, keras_tuner.GridSearch, model=picky, space=space, max_trials=6), points
    )
    statuses = {
        trial.hyperparameters.get("kind"): trial.status for trial in tuner.oracle.trials.values()
    }
    assert statuses == {"good": "COMPLETED", "bad": "FAILED"}
