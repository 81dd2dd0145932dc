"""What users bring as callbacks, in real searches with warm-up on."""

import csv
import time
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.callbacks import user_callbacks
from kbatch.callbacks.clock import TrainingClock
from kbatch.callbacks.rate import RateCallbacks, warmup_share
from kbatch.errors import SearchError
from kbatch.results.loading import load_records

WARM = Space(batch_size=128, policy="float32", optimizer="sgd", learning_rate={"sgd": 0.05})


def build(hp=None):
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def searched(directory, points, callbacks, trials=1, seconds=0.5, space=WARM, model=build):
    hypermodel = HyperModel(model, space, seconds_per_trial=seconds)
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=trials,
        directory=directory,
        project_name="p",
        seed=1,
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, verbose=0, callbacks=callbacks)
    return tuner, load_records(directory / "p")


@pytest.fixture(scope="module")
def observed(points, tmp_path_factory):
    """A search with callbacks that do not meddle with each other, and its confirmation.

    Its folder, its records, and the losses that a callback saw at the ends of epochs.
    """
    seen = []

    class Plateau(keras.callbacks.ReduceLROnPlateau):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(logs["val_loss"])
            super().on_epoch_end(epoch, logs)

    directory = tmp_path_factory.mktemp("observed")
    named = keras.callbacks.ModelCheckpoint(
        str(directory / "w_{epoch}_{val_accuracy:.2f}.weights.h5"), save_weights_only=True
    )
    best = keras.callbacks.ModelCheckpoint(
        str(directory / "best.keras"), "val_accuracy", save_best_only=True
    )
    log = keras.callbacks.CSVLogger(str(directory / "log.csv"))
    # slow enough for the loss to move until the end
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.99)
    # A value is measured twelve times.
    patient = [
        keras.callbacks.EarlyStopping("val_loss", patience=11),
        Plateau("val_loss", patience=11),
    ]
    tuner, records = searched(directory, points, [named, best, log, slower, *patient])
    (x, y), validation = points
    in_search = list(seen)
    kbatch.confirm(tuner, top=1, seeds=1)
    return directory, records, in_search


def test_patience_counts_measurements_not_epochs(observed):
    """With epochs of five updates, a patience in epochs would end or cool every trial at once."""
    _, records, seen = observed
    assert [record.outcome.ended for record in records] == ["horizon", "horizon"]
    assert len(seen) <= sum(len(record.outcome.curve) for record in records)
    assert len(set(seen)) > len(seen) / 2


def test_rates_that_callbacks_set_are_obeyed_and_recorded(observed):
    record = observed[1][1]
    outcome = record.outcome
    assert record.recipe.warmup_updates > 0
    assert outcome.final_learning_rate < record.recipe.learning_rate
    passes = -(-outcome.updates // 5)  # 600 examples at batch 128
    assert outcome.final_learning_rate == pytest.approx(
        record.recipe.learning_rate * 0.99**passes, rel=1e-3
    )
    assert any("the learning rate ended at" in remark for remark in outcome.remarks)


def test_files_named_by_what_was_measured_and_logs_are_written(observed):
    directory, records, _ = observed
    assert list(directory.glob("w_*.weights.h5"))
    assert {path.name for path in directory.glob("*.keras")} == {
        "best.keras",
        "baseline.best.keras",
        "confirmation_baseline_seed1.best.keras",
        "confirmation_trial0_seed1.best.keras",
    }
    rows = list(csv.DictReader((directory / "log.csv").open()))
    assert (
        0
        < sum(row["val_accuracy"] not in ("", "NA") for row in rows)
        <= len(records[1].outcome.curve)
    )
    assert "score" not in rows[0]


def used_board(path):
    """A callback that a training has used, as in a notebook's earlier cell."""
    board, model = keras.callbacks.TensorBoard(path), build()
    model.fit(np.zeros((2, 12)), np.zeros(2), callbacks=[board], verbose=0)
    return board


@pytest.mark.parametrize(
    ("callback", "schedule", "text"),
    [
        (lambda path: keras.callbacks.BackupAndRestore(path), False, "Received: BackupAndRestore"),
        (
            lambda path: keras.callbacks.ReduceLROnPlateau(),
            True,
            "ReduceLROnPlateau, and a model compiled with a learning-rate schedule",
        ),
        (lambda path: used_board(path), False, "Received: TensorBoard: cannot pickle"),
    ],
)
def test_callbacks_that_cannot_work_are_refused_by_name(callback, schedule, text, points, tmp_path):
    with pytest.raises(SearchError, match=text):
        user_callbacks.check_callbacks([callback(tmp_path / "backup")], schedule=schedule)


def test_a_refused_callback_ends_a_search_before_training(points, tmp_path):
    with pytest.raises(SearchError, match="BackupAndRestore"):
        searched(tmp_path, points, [keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


class Rates(keras.callbacks.Callback):
    """The rate at which each update is made."""

    def __init__(self, passes):
        super().__init__()
        self.passes, self.seen = passes, []

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.passes == 0:
            self.seen.append(float(self.model.optimizer.learning_rate))


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_warmup_is_linear_at_every_update(passes, policy, optimizer, points):
    (x, y), _ = points
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(1, "sigmoid", dtype="float32")]
        )
        kind = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer]
        model.compile(
            kind(0.01, gradient_accumulation_steps=passes if passes > 1 else None),
            "binary_crossentropy",
        )
    finally:
        keras.config.set_dtype_policy("float32")
    clock, rates = TrainingClock(passes), Rates(passes)
    warmup = RateCallbacks(lambda: warmup_share(clock.updates, 7))
    model.fit(
        x,
        y,
        batch_size=8,
        steps_per_epoch=4 * passes,
        epochs=4,
        verbose=0,
        callbacks=[clock, warmup.before, warmup.after, rates],
    )
    wanted = [0.01 * min((update + 1) / 8, 1.0) for update in range(16)]
    np.testing.assert_allclose(rates.seen, wanted, rtol=1e-6)


def test_warmup_in_a_training_reaches_the_recipes_rate(points):
    (x, y), validation = points
    rates = Rates(1)
    model, outcome = kbatch.train(
        Recipe(batch_size=64, optimizer="sgd", learning_rate=0.1, warmup_updates=10),
        build,
        x,
        y,
        validation,
        seconds=0.3,
        callbacks=[rates],
    )
    np.testing.assert_allclose(
        rates.seen[:12], [0.1 * min((i + 1) / 11, 1) for i in range(12)], rtol=1e-5
    )
    assert outcome.final_learning_rate == pytest.approx(0.1)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def test_what_a_callback_does_at_batches_is_not_charged(points):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)

    (x, y), validation = points
    _, outcome = kbatch.train(
        Recipe(batch_size=32), build, x, y, validation, seconds=0.1, callbacks=[Slow()]
    )
    assert outcome.updates >= 3  # each with its 0.1 s on the clock, not one would fit
    assert outcome.seconds["callbacks"] >= 0.1 * outcome.updates
    assert outcome.median_update_seconds < 0.1
