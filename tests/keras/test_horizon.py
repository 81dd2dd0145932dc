"""The horizon: when it measures, when it ends, and numbers that are not finite."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch import outcome
from kbatch.callbacks.clock import TrainingClock
from kbatch.callbacks.horizon import (
    MOST_IN_A_ROW,
    EpochEnd,
    Finiteness,
    Horizon,
    measure_validation,
    scaled_updates,
    weights_are_finite,
)
from kbatch.errors import ModelError
from kbatch.testing import FakeTime


class Slow(keras.callbacks.Callback):
    """Lets fake time pass with every batch."""

    def __init__(self, now, seconds):
        super().__init__()
        self.now, self.seconds = now, seconds

    def on_train_batch_begin(self, batch, logs=None):
        self.now.sleep(self.seconds)


def fitted(
    points,
    seconds=10.0,
    update=0.1,
    epochs=1000,
    extra=(),
    seed=3,
    batch_size=32,
    keep=None,
    fit=None,
    **arguments,
):
    (x, y), (x_val, y_val) = points
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
    now = FakeTime()
    clock = TrainingClock(now=now, wait=lambda: None)
    horizon = Horizon(
        seconds,
        tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(32),
        clock,
        now=now,
        **arguments,
    )
    if keep is not None:
        keep.append(horizon)
    callbacks = [clock, horizon, Slow(now, update), *extra]
    history = model.fit(
        x,
        y,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=callbacks,
        verbose=0,
        shuffle=False,
        **(fit or {}),
    )
    return model, clock, horizon, history


@pytest.fixture(scope="module")
def ten_seconds(points):
    """What `fitted` gives as it stands."""
    return fitted(points)


def test_it_measures_at_marks_and_at_the_end_within_the_horizon(ten_seconds):
    _, clock, horizon, _ = ten_seconds
    assert horizon.ended == "horizon"
    assert len(horizon.curve) == 12
    assert 9.9 <= clock.seconds <= 10.0
    for (seconds, _), mark in zip(horizon.curve[:-1], outcome.marks(10.0), strict=False):
        # the clock tells nothing before the second update
        assert mark <= seconds + 1e-9 < max(mark, 0.1) + 0.1 + 1e-6


def test_an_update_past_several_marks_is_measured_once(points):
    _, clock, horizon, _ = fitted(points, seconds=10.0, update=2.0)
    assert clock.updates == 5
    assert [round(seconds) for seconds, _ in horizon.curve] == [4, 6, 8, 10]


def test_the_weights_of_the_held_value_are_kept(ten_seconds):
    model, _, horizon, _ = ten_seconds
    held = outcome.held(horizon.curve)
    assert horizon.value == held.value
    assert measure_validation(model, horizon.validation_data)["accuracy"] == pytest.approx(
        held.value
    )


def test_with_and_without_marks_training_is_the_same(points):
    class Weights(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(
                (logs["loss"], logs["accuracy"], [w.copy() for w in self.model.get_weights()])
            )

    with_marks, without = Weights(), Weights()
    fitted(points, seconds=6.0, epochs=3, extra=[with_marks])
    fitted(points, seconds=1e9, epochs=3, extra=[without])
    for (loss, accuracy, weights), (plain_loss, plain_accuracy, plain_weights) in zip(
        with_marks.seen[:2], without.seen[:2], strict=True
    ):
        assert loss == plain_loss
        assert accuracy == plain_accuracy
        assert all(np.array_equal(a, b) for a, b in zip(weights, plain_weights, strict=True))


def test_epoch_logs_have_validation_only_where_measured(points):
    class Seen(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.said, self.measured = [], []

        def on_epoch_begin(self, epoch, logs=None):
            self.before = len(horizons[0].curve)

        def on_epoch_end(self, epoch, logs=None):
            self.said.append("val_accuracy" in logs)
            self.measured.append(len(horizons[0].curve) > self.before)

    horizons, seen = [], Seen()
    _, _, horizon, history = fitted(points, seconds=60.0, update=0.3, extra=[seen], keep=horizons)
    assert seen.said == seen.measured
    assert 1 < sum(seen.said) < len(seen.said)
    assert history.history["val_accuracy"][-1] == horizon.value


def test_validation_data_of_fit_itself_stay_in_the_logs(points):
    (x_val, y_val) = points[1]
    _, _, _, history = fitted(
        points, seconds=60.0, update=0.3, fit={"validation_data": (x_val[:10], y_val[:10])}
    )
    tenths = [round(10 * value, 5) for value in history.history["val_accuracy"]]
    assert all(value == round(value) for value in tenths)


def test_a_clock_that_is_not_among_the_callbacks_is_refused(points):
    (x, y), (x_val, y_val) = points
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    horizon = Horizon(
        5.0, tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(32), TrainingClock()
    )
    with pytest.raises(ModelError, match="clock, horizon"):
        model.fit(x, y, epochs=1, callbacks=[horizon], verbose=0)


def test_several_batches_a_call_are_refused(points):
    (x, y), _ = points
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"], steps_per_execution=4)
    with pytest.raises(ModelError, match="steps_per_execution must be 1"):
        model.fit(x, y, callbacks=[TrainingClock()], verbose=0)


def test_near_a_target_it_measures_more_often():
    def seconds_to_target(rate, target=0.85, seconds=60.0):
        curve, clock = [], 0.0
        while outcome.seconds_to(curve, target) is None and clock < seconds:
            clock += 0.01
            if clock >= outcome.next_mark(curve, seconds, target):
                curve.append((clock, 0.5 + 0.45 * (1 - np.exp(-clock * rate))))
        return outcome.seconds_to(curve, target), len(curve)

    for rate in np.geomspace(0.05, 2.0, 15):
        reached, measurements = seconds_to_target(rate)
        slower, _ = seconds_to_target(rate / 1.1)
        true = -np.log(1 - 0.35 / 0.45) / rate
        assert 1.0 <= reached / true < 1.08
        assert 1.05 < slower / reached < 1.15
        assert measurements < 40


def test_a_batch_that_overflows_does_not_end_training(points):
    class Outlier(keras.callbacks.Callback):
        """Spoils the running mean of the loss, as a batch does that overflows and is skipped."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                self.model._loss_tracker.variables[0].assign(np.inf)

    _, _, horizon, history = fitted(points, seconds=6.0, extra=[Outlier()])
    assert horizon.ended == "horizon"
    assert np.all(np.isfinite(history.history["loss"]))


def test_twenty_updates_without_a_finite_loss_end_training(points):
    class Outliers(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model._loss_tracker.variables[0].assign(np.inf)

    _, clock, horizon, _ = fitted(points, seconds=60.0, extra=[Outliers()])
    assert (horizon.ended, clock.updates) == ("nan", 20)


def test_a_target_ends_training_once_it_is_held(points):
    _, clock, horizon, _ = fitted(points, seconds=50.0, target=0.6)
    assert horizon.ended == "target"
    assert clock.seconds == outcome.seconds_to(horizon.curve, 0.6)
    assert min(value for _, value in horizon.curve[-3:]) >= 0.6


def test_a_callback_of_the_users_ends_training(points):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    model, _, horizon, _ = fitted(points, seconds=1000.0, extra=[Stop()])
    assert horizon.ended == "callback"
    assert horizon.finished
    assert measure_validation(model, horizon.validation_data)["accuracy"] == pytest.approx(
        horizon.value
    )


def test_nan_ends_training(points):
    class Spoil(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 9:
                self.model.set_weights([np.full_like(w, np.nan) for w in self.model.get_weights()])

    _, clock, horizon, _ = fitted(points, extra=[Spoil()])
    assert horizon.ended == "nan"
    assert clock.updates == 10


def test_infinite_weights_end_training_though_relu_hides_them(points):
    """A ReLU makes 0 of NaN, so that loss and accuracy are finite."""

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            first, *rest = self.model.get_weights()
            self.model.set_weights([np.full_like(first, np.nan), *rest])

    (x, y), validation = points
    spoiled = []
    _, clock, horizon, _ = fitted(((x, y), validation), extra=[Spoil()], keep=spoiled)
    assert horizon.ended == "nan"
    assert clock.updates < 10  # at the first mark, not at the horizon


def test_an_unknown_metric_lists_those_the_model_has(points):
    with pytest.raises(ModelError, match="val_loss, val_accuracy|val_accuracy, val_loss"):
        fitted(points, metric="val_f1")


def test_a_training_that_is_asked_goes_on_the_same_to_the_bit(points, ten_seconds):
    asked = []
    model, clock, horizon, _ = fitted(points, goes_on=lambda curve: not asked.append(len(curve)))
    other, other_clock, unasked, _ = ten_seconds
    assert asked == list(range(1, 12))  # the last measurement is at the end
    assert horizon.curve == unasked.curve
    assert clock.update_seconds == other_clock.update_seconds
    for own, weights in zip(model.get_weights(), other.get_weights(), strict=True):
        assert np.array_equal(own, weights)


def test_a_training_that_does_not_go_on_keeps_what_it_held(points, ten_seconds):
    model, clock, horizon, _ = fitted(points, goes_on=lambda curve: len(curve) < 4)
    whole = ten_seconds[2]
    assert horizon.ended == "stopped"
    assert horizon.curve == whole.curve[:4]
    assert clock.updates == whole.curve_updates[3]
    assert horizon.value == outcome.held(whole.curve[:4]).value
    assert measure_validation(model, horizon.validation_data)["accuracy"] == pytest.approx(
        horizon.value
    )


class FakeHorizon:
    def __init__(self, now):
        self.now, self.validation_seconds, self.finished = now, 0.0, False
        self.model = SimpleNamespace(stop_training=False)

    def on_epoch_end(self, epoch, logs):
        self.now.sleep(0.5)
        self.validation_seconds += 0.5
        self.finished = True


@pytest.fixture
def now():
    return FakeTime(100.0)


def ended(end, now, users=0.0, checkpoint=0.0):
    end.before.on_epoch_end(0, {})
    now.sleep(users)
    end.between.on_epoch_end(0, {})
    now.sleep(checkpoint)
    end.after.on_epoch_end(0, {})


def test_each_part_has_its_own_seconds(now):
    resumed = []
    clock = SimpleNamespace(resume=lambda: resumed.append(now()))
    end = EpochEnd(clock, FakeHorizon(now), now)
    assert end.ended_at is None
    ended(end, now, users=2.0, checkpoint=3.0)
    ended(end, now, users=0.25, checkpoint=1.0)
    assert (end.callback_seconds, end.checkpoint_seconds) == (2.25, 4.0)
    assert resumed == [105.0, 106.25]  # the clock runs again after the last callback
    assert end.ended_at == 106.25


def test_a_training_that_a_callback_stopped_is_measured_again(now):
    horizon = FakeHorizon(now)
    end = EpochEnd(SimpleNamespace(resume=lambda: None), horizon, now)
    ended(end, now, users=1.0)
    assert not horizon.finished
    horizon.model.stop_training = True
    ended(end, now, users=1.0)
    ended(end, now)
    assert horizon.finished
    assert horizon.validation_seconds == 0.5  # once
    assert end.callback_seconds == 2.0  # without the measurement


NAN = {"loss": float("nan")}


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    return model


def test_some_losses_in_a_row_are_no_end_and_many_are(model):
    watched = Finiteness()
    assert not any(watched.lost(model, NAN) for _ in range(MOST_IN_A_ROW - 1))
    assert not watched.lost(model, {"loss": 0.5})  # counts anew
    assert [watched.lost(model, NAN) for _ in range(MOST_IN_A_ROW)].index(True) == MOST_IN_A_ROW - 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_weight_that_is_not_finite_is_the_end(model, value):
    assert weights_are_finite(model)
    model.layers[0].kernel.assign([[0.0], [value]])
    assert not weights_are_finite(model)
    assert Finiteness().lost(model, NAN)


def test_metrics_that_the_update_spoiled_begin_anew(model):
    spoiled = next(metric for metric in model.metrics if metric.name == "loss")
    spoiled.total.assign(float("nan"))
    assert not Finiteness().lost(model, NAN)
    assert float(spoiled.total) == 0.0


def test_updates_are_counted_apart_only_under_loss_scaling(model):
    assert scaled_updates(model) is None
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    assert scaled_updates(model) == 1


def test_what_validation_draws_does_not_change_training():
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            keras.layers.LSTM(4, dropout=0.3, recurrent_dropout=0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    x, y = np.ones((16, 5, 3)), np.zeros((16, 1))
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.fit(batches, verbose=0)

    def drawn():
        return [each.numpy().copy() for each in model.variables if "seed" in each.path]

    before = drawn()
    measure_validation(model, batches)
    assert all(map(np.array_equal, before, drawn()))
    model.evaluate(batches, verbose=0)
    assert not all(map(np.array_equal, before, drawn()))  # Keras itself draws there
