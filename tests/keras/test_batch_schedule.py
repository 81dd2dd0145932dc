"""A growing batch in a plain `model.fit`: every example once an epoch, at the rate of its batch."""

import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.callbacks.batch_schedule import BatchSchedule
from kbatch.errors import DataError, ModelError, RecipeError

N = 100
X = np.arange(N, dtype="float32").reshape(N, 1) / N
Y = 2 * X + 1


class Seen(keras.Sequential):
    """Notes the examples and the learning rate of every step that runs, and every trace."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.steps, self.traces = [], []

    def train_step(self, data):
        self.traces.append(data[0].shape.as_list())

        def note(x, rate):
            self.steps.append((np.rint(x[:, 0] * N).astype(int).tolist(), float(rate)))
            return np.int64(0)

        noted = tf.numpy_function(note, [data[0], self.optimizer.learning_rate + 0.0], tf.int64)
        with tf.control_dependencies([noted]):
            return super().train_step(data)


def model_of(optimizer=None, **named):
    model = Seen([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = optimizer or keras.optimizers.SGD(0.04)
    model.compile(optimizer, "mse", **{"jit_compile": False, **named})
    return model


class Epochs(keras.callbacks.Callback):
    """The batches of each epoch, and the rates that another callback sees."""

    def __init__(self):
        super().__init__()
        self.begun, self.ends, self.shown = [], [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        assert self.model.stop_training is False
        self.ends.append(len(self.model.steps))
        self.shown.append(float(self.model.optimizer.learning_rate))


def fitted(schedule, *, model=None, epochs=6, x=X, y=Y, callbacks=(), **named):
    model, noted = model or model_of(), Epochs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # Keras warns of data that end early
        history = model.fit(
            schedule.batches(x, y),
            epochs=epochs,
            callbacks=[schedule, noted, *callbacks],
            verbose=0,
            shuffle=False,  # Keras warns otherwise
            **named,
        )
    return model, noted, history


def datasets():
    pairs = tf.data.Dataset.from_tensor_slices((X, Y))
    return {
        "arrays": (X, Y),
        "examples": (pairs, None),
        "batches": (pairs.batch(7).map(lambda x, y: (tf.ensure_shape(x, (None, 1)), y)), None),
    }


@pytest.mark.parametrize("kind", ["arrays", "examples", "batches"])
@pytest.mark.parametrize("text", ["linear:8", "exponential:8", "steps:8", "constant"])
def test_each_epoch_has_each_example_once_at_its_rate(kind, text):
    x, y = datasets()[kind]
    schedule = BatchSchedule(text, batch_size=40)
    if kind != "arrays":
        batches = schedule.batches(x, batched=kind == "batches")
        model, noted = model_of(), Epochs()
        model.fit(batches, epochs=6, callbacks=[schedule, noted], verbose=0)
    else:
        model, noted, _ = fitted(schedule, x=x, y=y)
    sizes = [len(ids) for ids, _ in model.steps]
    begins = [0, *noted.ends]
    assert noted.ends[-1] == len(noted.begun) == len(sizes)
    orders = set()
    for first, last in itertools.pairwise(begins):
        ids = list(itertools.chain.from_iterable(step[0] for step in model.steps[first:last]))
        assert sorted(ids) == list(range(N))
        orders.add(tuple(ids))
        assert sizes[first : last - 1] == sorted(sizes[first : last - 1])
    assert len(orders) == 6
    assert (sizes[0], max(sizes)) == (5 if text != "constant" else 40, 40)
    np.testing.assert_allclose(
        [rate for _, rate in model.steps], [0.04 * size / 40 for size in sizes], rtol=1e-6
    )
    assert schedule.sizes == tuple(sizes)
    assert set(noted.shown) == {np.float32(0.04)}
    assert model.traces == [[None, 1]] * len(model.traces)
    assert len(model.traces) <= 2


def test_it_is_traced_as_often_as_whole_batches_of_one_size():
    plain = model_of()
    plain.fit(X, Y, batch_size=20, epochs=2, verbose=0)
    assert len(fitted(BatchSchedule("linear:8", 40))[0].traces) == len(plain.traces)


def test_the_batch_doubles_when_a_metric_stays():
    schedule = BatchSchedule("plateau:8", 40, monitor="val_loss")
    still = model_of(keras.optimizers.SGD(0.0))
    _, noted, _ = fitted(schedule, model=still, epochs=9, validation_data=(X, Y))
    firsts = [schedule.sizes[begin] for begin in [0, *noted.ends[:-1]]]
    assert firsts == [5, 5, 5, 10, 10, 20, 20, 40, 40]
    with pytest.raises(ModelError, match="val_points"):
        fitted(BatchSchedule("plateau:8", 40, monitor="val_points"), validation_data=(X, Y))


def test_the_batch_follows_a_noise_scale():
    schedule = BatchSchedule("noise:8", 40, noise_scale=lambda: 20.0)
    fitted(schedule, epochs=1)
    assert set(schedule.sizes[:-1]) == {16}  # the largest of its sizes within 20


def test_the_rate_that_a_callback_sets_is_the_full_one():
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.04 * 0.5**epoch)
    schedule = BatchSchedule("linear:4", 40, rule="sqrt")
    model, noted, history = fitted(schedule, epochs=3, callbacks=[halved])
    for number, (ids, rate) in enumerate(model.steps):
        epoch = sum(number >= end for end in noted.ends)
        assert rate == pytest.approx(0.04 * 0.5**epoch * (len(ids) / 40) ** 0.5, rel=1e-5)
    np.testing.assert_allclose(history.history["learning_rate"], [0.04, 0.02, 0.01], rtol=1e-6)


def plateau():
    return keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10, factor=0.5)


def falling():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)


@pytest.mark.parametrize(
    ("setter", "halvings"), [(plateau, [0, 0, 1, 2, 3, 4]), (falling, [0, 1, 2, 3, 4, 5])]
)
def test_a_callback_sets_the_full_rate_from_every_place(setter, halvings):
    rates = [0.04 / 2**times for times in halvings]
    for place in ("before", "after"):
        schedule, model = BatchSchedule("exponential:8", 40), model_of()
        callbacks = [setter(), schedule] if place == "before" else [schedule, setter()]
        history = model.fit(schedule.batches(X, Y), epochs=6, callbacks=callbacks, verbose=0)
        assert float(model.optimizer.learning_rate) == pytest.approx(0.04 / 2**5)
        np.testing.assert_allclose(history.history["learning_rate"], rates, rtol=1e-6)
        done = 0
        for ids, rate in model.steps:
            assert rate == pytest.approx(rates[done // N] * len(ids) / 40, rel=1e-5)
            done += len(ids)


@pytest.mark.parametrize(("optimizer", "power"), [("SGD", 1), ("Adam", 0.5), ("Lion", 0.5)])
def test_the_rule_is_that_of_the_optimizer(optimizer, power):
    model = model_of(getattr(keras.optimizers, optimizer)(0.04))
    fitted(BatchSchedule("linear:8", 40), model=model, epochs=2)
    for ids, rate in model.steps:
        assert rate == pytest.approx(0.04 * (len(ids) / 40) ** power, rel=1e-5)


def test_a_second_fit_begins_anew_and_a_later_epoch_goes_on():
    schedule = BatchSchedule("linear:8", 40)
    model, _, _ = fitted(schedule)
    first = schedule.sizes
    fitted(schedule, model=model)
    assert schedule.sizes == first
    fitted(schedule, epochs=6, initial_epoch=3, model=model)
    assert schedule.sizes[0] == first[np.argmax(np.cumsum(first) >= 3 * N) + 1]
    fitted(BatchSchedule("linear:8", 40, epochs=1), epochs=3, model=model)


def test_early_stopping_and_a_callback_at_a_pass_end_still_stop():
    patient = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    _, noted, _ = fitted(BatchSchedule("linear:8", 40), callbacks=[patient])
    assert len(noted.ends) == 2

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            done = sum(len(step[0]) for step in self.model.steps)
            if done == 2 * N:
                self.model.stop_training = True

    model = model_of()
    schedule = BatchSchedule("linear:8", 40)
    model.fit(schedule.batches(X, Y), epochs=6, callbacks=[schedule, Stop()], verbose=0)
    assert sum(schedule.sizes) == 2 * N


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"jit_compile": True}, "jit_compile=True"),
        ({"steps_per_execution": 2}, "steps_per_execution above 1"),
        (
            {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
            "gradient_accumulation_steps",
        ),
        (
            {"optimizer": keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))},
            "a learning rate that is not a number",
        ),
    ],
)
def test_models_that_cannot_change_their_batch_are_refused(named, text):
    with pytest.raises(ModelError, match=text):
        fitted(BatchSchedule("linear:8", 40), model=model_of(**named))


def test_what_does_not_fit_together_is_refused():
    schedule = BatchSchedule("linear:8", 40)
    with pytest.raises(ModelError, match="Pass schedule.batches"):
        model_of().fit(X, Y, callbacks=[schedule], verbose=0)
    with pytest.raises(tf.errors.OpError, match="Pass callbacks="):
        model_of().fit(schedule.batches(X, Y), verbose=0)
    with pytest.raises(DataError, match="at most the number of examples, 100"):
        BatchSchedule("linear:8", 101).batches(X, Y)
    for arguments in (("linear", 40), ("linear:8", 0), ("noise:8", 40)):
        with pytest.raises(RecipeError):
            BatchSchedule(*arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("direction", "maximum"),
        ("direction", None),
        ("epochs", 0),
        ("epochs", -3),
        ("epochs", "3"),
        ("epochs", True),
        ("monitor", 3),
        ("noise_scale", 5),
        ("seed", "a"),
        ("seed", None),
    ],
)
def test_arguments_that_make_no_sense_are_refused(name, value):
    with pytest.raises(RecipeError, match=f"`{name}` must be .*Received: {value!r}"):
        BatchSchedule("plateau:8", 40, **{name: value})
    assert BatchSchedule("plateau:8", 40, epochs=np.int64(3), seed=np.int32(-1)).epochs == 3


def test_a_distribution_strategy_is_refused_by_name():
    strategy, schedule = tf.distribute.OneDeviceStrategy("CPU:0"), BatchSchedule("linear:8", 40)
    with strategy.scope():
        model = model_of()
        with pytest.raises(ModelError, match="train on one device. Received: OneDeviceStrategy"):
            schedule.batches(X, Y)
    # in a thread of TensorFlow, where nobody knows of the strategy
    with pytest.raises(tf.errors.OpError, match="or a model of a distribution strategy"):
        model.fit(schedule.batches(X, Y), callbacks=[schedule], verbose=0)


def test_the_rule_is_that_of_the_scaled_optimizer():
    class Rates(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_begin(self, batch, logs=None):
            self.seen.append(float(self.model.optimizer.learning_rate))

    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.8))
    schedule, rates = BatchSchedule("linear:8", 40), Rates()
    model = model_of(optimizer=scaled)
    model.fit(schedule.batches(X, Y), epochs=1, callbacks=[schedule, rates], verbose=0)
    assert rates.seen == pytest.approx([0.8 * size / 40 for size in schedule.sizes])
