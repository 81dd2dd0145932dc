"""Copies of metrics have no state, and all settings."""

import keras
import numpy as np
import pytest

import kbatch
from kbatch.models.compilation import copied_metric


class Near(keras.metrics.Metric):
    """The share of answers near the label; its config is Keras' own, without `width`."""

    def __init__(self, width=0.1, name="near"):
        super().__init__(name=name)
        self.width = width
        self.near = self.add_weight(name="near", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        near = keras.ops.abs(y_true - y_pred) < self.width
        self.near.assign_add(keras.ops.sum(keras.ops.cast(near, "float32")))
        self.seen.assign_add(keras.ops.cast(keras.ops.size(near), "float32"))

    def result(self):
        return self.near / self.seen


class Written(Near):
    def get_config(self):
        return {"width": self.width, "name": self.name}


METRICS = keras.metrics
MADE = {
    "auc": lambda: METRICS.AUC(multi_label=True, num_thresholds=50),
    "f1": lambda: METRICS.F1Score(average="macro", threshold=0.4),
    "iou": lambda: METRICS.MeanIoU(3, ignore_class=0),
    "wrapper": lambda: METRICS.MeanMetricWrapper(keras.losses.mean_squared_error, name="m"),
    "written": lambda: Written(0.5),
    "forgotten": lambda: Near(0.5),
}


@pytest.mark.parametrize("name", MADE)
def test_a_copy_measures_what_the_metric_does(name):
    first = MADE[name]()
    one = copied_metric({"metrics": [first, "accuracy", None]})["metrics"]
    assert one[1:] == ["accuracy", None]
    rng = np.random.default_rng(0)
    labels, answers = (rng.random((40, 3)) > 0.5).astype("float32"), rng.random((40, 3))
    first.update_state(labels, answers.astype("float32"))
    expected = first.result()
    one[0].reset_state()
    one[0].update_state(labels, answers.astype("float32"))
    np.testing.assert_array_equal(one[0].result(), expected)
    assert (one[0] is first) == (name == "forgotten")


def test_a_metric_whose_config_forgets_a_setting_is_scored():
    x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    model, outcome = kbatch.train(
        kbatch.Recipe(20, "sgd", 1e-6),
        *(build, x[:80], y[:80], (x[80:], y[80:])),
        epochs=1,
        loss="mse",
        metrics=[Near(1.5)],
        metric="val_near",
        direction="max",
    )
    near = np.abs(model.predict(x[80:], verbose=0) - y[80:]) < 1.5
    assert outcome.curve[-1][1] == pytest.approx(near.mean())
