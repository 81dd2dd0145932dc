"""One recipe trained without a tuner: the path that every trial takes."""

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe
from kbatch.errors import DataError, KbatchError, SearchError
from kbatch.training import run

SECONDS = 0.4
ONCE = {"seconds": None, "epochs": 1}  # where neither time nor accuracy is looked at


def train(build, points, recipe=None, **arguments):
    (x, y), validation = points
    return kbatch.train(
        recipe or Recipe(), build, x, y, validation, **{"seconds": SECONDS, **arguments}
    )


def classifier(*layers, metrics=("accuracy",)):
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[*metrics])
    return model


class Losses(keras.callbacks.Callback):
    """Keeps the running loss after each of the first updates."""

    def __init__(self):
        super().__init__()
        self.first = []

    def on_train_batch_end(self, batch, logs=None):
        if len(self.first) < 10:
            self.first.append(logs["loss"])


@pytest.fixture(scope="module")
def losses():
    """The first losses of `trained`."""
    return Losses()


@pytest.fixture(scope="module")
def trained(build, points, losses):
    """A model and its outcome after a second at batch 32."""
    return train(build, points, seconds=1.0, seed=1, callbacks=[losses])


@pytest.fixture(scope="module")
def stopped(build, points):
    """A model and its outcome, stopped at a second measurement, as the loss falls."""
    stopping = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=1, restore_best_weights=True
    )
    return train(build, points, seconds=20.0, callbacks=[stopping])


def test_a_callback_of_the_users_may_end_it(stopped):
    assert stopped[1].ended == "callback"


def test_the_returned_model_holds_the_kept_weights(stopped, points):
    model, outcome = stopped
    assert model.evaluate(*points[1], verbose=0, return_dict=True)["accuracy"] == pytest.approx(
        outcome.value
    )


def test_the_outcome_says_what_was_measured(trained, points):
    model, outcome = trained
    assert outcome.ended == "horizon"
    assert outcome.train_seconds == outcome.curve[-1][0]
    assert outcome.examples == outcome.updates * 32
    assert outcome.learning_rate == pytest.approx(1e-3)
    assert model.evaluate(*points[1], verbose=0, return_dict=True)["accuracy"] == pytest.approx(
        outcome.value
    )
    assert outcome.metrics["val_accuracy"] == outcome.value
    assert outcome.input_examples_per_second > 0


def test_stored_curves_score_again_to_the_live_score(trained):
    outcome = trained[1]
    goal = run.Goal(1.0, "val_accuracy", "max", 0.5)
    again = kbatch.Outcome.from_dict(outcome.to_dict())
    assert kbatch.score(again.curve, 1.0, 0.5) == goal.score(outcome) > 0


def test_the_parts_of_a_trial_explain_its_whole(trained):
    outcome = trained[1]
    assert outcome.seconds.keys() >= {
        "build",
        "first_step",
        "training",
        "validation",
        "checkpoint",
        "total",
    }
    assert all(seconds >= 0 for seconds in outcome.seconds.values())
    assert abs(outcome.unexplained_seconds) <= 0.02 * outcome.seconds["total"]


def test_an_unbatched_dataset_trains_like_arrays(build, points):
    (x, y), (x_val, y_val) = points
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    model, outcome = kbatch.train(
        Recipe(64),
        build,
        dataset,
        validation_data=tf.data.Dataset.from_tensor_slices((x_val, y_val)),
        epochs=20,
    )
    assert outcome.value > 0.6


def test_accumulation_counts_whole_updates(build, points):
    _, outcome = train(build, points, Recipe(64, "sgd", 0.05, 3, micro_batch_size=16))
    assert outcome.examples == 64 * outcome.updates


def test_a_custom_train_step_is_the_one_that_runs(points):
    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, "sigmoid")
            self.steps = self.add_weight(
                shape=(), initializer="zeros", trainable=False, name="steps"
            )

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            self.steps.assign_add(1.0)
            return super().train_step(data)

    def build():
        model = Counting()
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    kbatch.register_augmentation("tiny_noise", tiny_noise)
    for name in ("none", "tiny_noise"):
        model, outcome = train(build, points, Recipe(augmentation=name), **ONCE)
        assert 0 < float(model.steps.numpy()) <= outcome.updates


def tiny_noise():
    return [keras.layers.GaussianNoise(1e-6)]


def test_out_of_memory_is_an_outcome(points):
    class Hungry(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                raise tf.errors.ResourceExhaustedError(
                    None, None, "OOM when allocating tensor with shape[1]"
                )
            return x

    _, outcome = train(lambda: classifier(Hungry()), points)
    assert outcome.ended == "out_of_memory"
    assert "OOM when allocating" in outcome.message


def test_nan_is_an_outcome(build, points):
    _, outcome = train(build, points, Recipe(optimizer="sgd", learning_rate=1e30))
    assert outcome.ended == "nan"
    assert run.Goal(SECONDS, "val_accuracy", "max", 0.5).score(outcome) == 0.0


@pytest.mark.parametrize("length", [{"seconds": 20.0}, {"seconds": None, "epochs": 500}])
def test_a_target_ends_it(length, build, points):
    recipe = Recipe(32, "sgd", 0.1)
    _, outcome = train(build, points, recipe, target=np.float32(0.65), **length)
    assert outcome.ended == "target"
    assert outcome.train_seconds < 20.0 or "epochs" in length
    assert outcome.updates < 500 * 19 or "epochs" not in length


def test_class_weights_and_sample_weights_pass_through(raw, points):
    (x, y), validation = points
    arguments = {"seconds": SECONDS, "loss": "binary_crossentropy", "metrics": ["accuracy"]}
    for weights in (
        {"class_weight": {0: 1.0, 1: 0.0}},
        {"sample_weight": (y == 0).astype("float32")},
    ):
        model, _ = kbatch.train(Recipe(), raw, x, y, validation, **arguments, **weights)
        # about half without them, however slow the machine
        assert (model.predict(validation[0], verbose=0) < 0.5).mean() > 0.7


def test_one_seed_trains_one_model(trained, losses, build, points):
    def first_losses(seed):
        seen = Losses()
        train(build, points, seed=seed, callbacks=[seen], **ONCE)
        return seen.first

    assert len(losses.first) == 10
    assert first_losses(1) == losses.first != first_losses(2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_every_policy_trains_with_and_without_jit(policy, jit_compile, raw, points):
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, policy=policy, jit_compile=jit_compile)
    _, outcome = train(raw, points, recipe, loss="binary_crossentropy", metrics=["accuracy"])
    assert outcome.value > 0.6
    assert keras.config.dtype_policy().name == "float32"


def test_what_cannot_be_trained_is_refused(build, points):
    with pytest.raises(DataError, match="at most the number of training examples, 600"):
        train(build, points, Recipe(1024))
    with pytest.raises(SearchError, match="above 0"):
        train(build, points, seconds=-1)
    with pytest.raises(KbatchError, match="must be one of none"):
        train(build, points, Recipe(augmentation="swirl"))
    with pytest.raises(KbatchError, match="CutMix must have images"):
        train(build, points, Recipe(augmentation="cutmix"))
    with pytest.raises(DataError, match="something to validate on"):
        kbatch.train(Recipe(), build, *points[0], seconds=1)


def test_a_trial_that_waits_for_input_says_what_can_be_done(build, points):
    import time

    (x, y), validation = points

    def slow(index):
        time.sleep(0.001)
        return x[int(index)], y[int(index)]

    def load(index):
        features, label = tf.numpy_function(slow, [index], (tf.float32, tf.int32))
        return tf.ensure_shape(features, (12,)), tf.ensure_shape(label, ())

    _, outcome = kbatch.train(
        Recipe(),
        build,
        tf.data.Dataset.range(600).map(load),
        validation_data=validation,
        seconds=0.5,
    )
    assert any(
        "waits for input" in remark and "put `.cache()`" in remark for remark in outcome.remarks
    )


def test_peak_bytes_grow_with_the_batch(points):
    def build():
        return classifier(keras.layers.Dense(4096, "relu"))

    small, large = (
        train(build, points, Recipe(size, "sgd", 0.01), **ONCE)[1].peak_bytes for size in (8, 512)
    )
    if small is None:
        pytest.skip("this device cannot tell its bytes")
    assert large > small + 504 * 4096 * 4


@pytest.mark.parametrize("batched", [None, True])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_batched_dataset_is_taken_apart(drop_remainder, batched, build, points):
    (x, y), validation = points
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(10, drop_remainder=drop_remainder)
    _, outcome = kbatch.train(
        Recipe(), build, dataset, validation_data=validation, epochs=1, batched=batched
    )
    assert outcome.ended == "horizon"


def test_endless_validation_data_are_refused(build, points):
    (x, y), validation = points
    with pytest.raises(DataError, match="repeat"):
        kbatch.train(
            Recipe(),
            build,
            x,
            y,
            tf.data.Dataset.from_tensor_slices(validation).repeat(),
            seconds=1,
        )


def test_epochs_are_whole_passes_measured_at_twelve_marks(build, points):
    for batch_size, updates in ((32, 57), (64, 29)):  # 3 x 600 examples in whole updates
        _, outcome = train(build, points, Recipe(batch_size), seconds=None, epochs=3)
        assert (outcome.ended, outcome.updates, outcome.examples) == (
            "horizon",
            updates,
            updates * batch_size,
        )
        assert len(outcome.curve) in (10, 11, 12)  # the first marks of so few updates fall together
        assert outcome.curve[-1][0] == outcome.train_seconds > 0
        assert not any("inf" in remark or "horizon" in remark for remark in outcome.remarks)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        ({"seconds": None}, "one of seconds, epochs and updates. Received: none"),
        ({"seconds": 1, "epochs": 1}, "updates. Received: seconds=1 and epochs=1"),
        ({"epochs": 1, "updates": 5}, "Received: seconds=0.4 and epochs=1 and updates=5"),
        ({"seconds": None, "updates": 0.5}, "`updates` must be a whole number of at least 1"),
        ({"seconds": None, "updates": True}, "`updates` must be a whole number of at least 1"),
        ({"seconds": None, "epochs": 0}, "`epochs` must be a whole number"),
        ({"seconds": None, "epochs": 1.5}, "`epochs` must be a whole number"),
        ({"seconds": "9"}, "above 0"),
        ({"target": 75}, "such as 0.75 for 75 %"),
        ({"values": [64]}, "`values` must be a mapping"),
        ({"seed": None}, "`seed` must be a whole number"),
    ],
)
def test_what_says_no_training_is_refused(length, text, build, points):
    with pytest.raises(SearchError, match=text):
        train(build, points, **length)


def sized(hp):
    return classifier(keras.layers.Dense(hp.Int("units", 4, 64), "relu"))


def test_values_are_the_users_own_hyperparameters(points):
    def units(**arguments):
        return train(arguments.pop("build", sized), points, **ONCE, **arguments)[0].layers[0].units

    class Sized(keras_tuner.HyperModel):
        def build(self, hp):
            return sized(hp)

    assert units() == 4
    assert units(build=Sized(), values={"units": 48}) == 48
    # kbatch's own are the recipe's
    assert units(values={"units": 8, "batch_size": 256, "learning_rate_sgd": 0.1}) == 8
    with pytest.raises(
        SearchError, match=r"that `build` declares \(units\). Received: unit, width"
    ):
        units(values={"units": 8, "unit": 9, "width": 1})


def test_an_unnamed_metric_keeps_its_name_in_every_training(points):
    def build():
        return classifier(metrics=[keras.metrics.AUC(), keras.metrics.Precision()])

    for _ in range(2):
        _, outcome = train(build, points, metric="val_auc", **ONCE)
        assert outcome.metrics.keys() == {"val_loss", "val_auc", "val_precision"}


def test_a_metric_of_a_value_per_class_may_be_compiled_too(points):
    (x, y), (x_val, y_val) = points

    def build():
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(2, "softmax")])
        model.compile(
            "adam", "categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score()]
        )
        return model

    one_hot = (x, np.eye(2)[y], (x_val, np.eye(2)[y_val]))
    _, outcome = kbatch.train(Recipe(), build, *one_hot, epochs=1)
    assert outcome.metrics.keys() == {"val_loss", "val_accuracy"}
    with pytest.raises(
        KbatchError,
        match=(
            r"must be one number that the model measures \(val_accuracy, "
            r"val_loss\). Received: val_f1_score"
        ),
    ):
        kbatch.train(Recipe(), build, *one_hot, epochs=1, metric="val_f1_score", chance=0.3)


def test_regression_says_what_chance_it_was_measured_against(points):
    (x, _), (x_val, _) = points

    def build():
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    y, y_val = x[:, 0] * 3 + 1, x_val[:, 0] * 3 + 1
    _, outcome = kbatch.train(
        Recipe(learning_rate=0.05),
        build,
        x,
        y,
        (x_val, y_val),
        epochs=2,
        metric="val_mean_absolute_error",
    )
    chance = min(np.abs(y_val - constant(y)).mean() for constant in (np.mean, np.median))
    assert any(f"chance is {chance:.4g}" in remark for remark in outcome.remarks)
    assert outcome.value < chance


@pytest.fixture(scope="module")
def accumulated(points):
    """The outcome of two epochs that accumulate gradients below batch normalization."""

    recipe = Recipe(64, "sgd", 0.1, 3, micro_batch_size=16)
    normal = lambda: classifier(keras.layers.BatchNormalization())  # noqa: E731
    return train(normal, points, recipe, seconds=None, epochs=np.int64(2))[1]


def test_epochs_count_updates_not_micro_batches(accumulated):
    assert accumulated.updates == 19


def test_what_is_worth_knowing_of_accumulation_is_a_remark(accumulated):
    assert any("batch normalization sees passes of 16" in remark for remark in accumulated.remarks)
