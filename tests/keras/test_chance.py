"""Chance is what the model's own metric gives for the best constant answer: against plain Keras."""

import itertools

import keras
import numpy as np
import pytest

from kbatch.data.validation import prepare
from kbatch.errors import SearchError
from kbatch.models.compilation import CompileArguments
from kbatch.training.goal import goal_of
from kbatch.training.metrics import ModelMetrics

RNG = np.random.default_rng(0)
ONE = (RNG.random(60) < 0.3).astype("float32")
CLASSES = RNG.choice(3, 60, p=[0.7, 0.2, 0.1])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SEVERAL = (RNG.random((60, 2)) < [0.6, 0.2]).astype("float32")
NUMBERS = RNG.gamma(2.0, 1.0, 60).astype("float32")
STEPS = RNG.choice(3, (60, 4), p=[0.2, 0.5, 0.3])
WEIGHTS = RNG.random(60).astype("float32") * 3
UNIT = np.linspace(0, 1, 6)
SIMPLEX = [p for p in itertools.product(UNIT, repeat=3) if abs(sum(p) - 1) < 1e-9]
UNEQUAL = [p for p in SIMPLEX if len(set(p)) == 3]
SQUARE = list(itertools.product(UNIT, repeat=2))
ARGUMENTS = CompileArguments()
LINE = [(each,) for each in np.linspace(-3, 6, 31)]


def own_share(y_true, y_pred):
    """The share of labels within one of the answer."""
    return keras.ops.mean(keras.ops.cast(keras.ops.abs(y_true - y_pred) < 1, "float32"), axis=-1)


def model_of(shape, activation, loss="mse", **compiled):
    x = keras.Input((*shape[:-1], 2))
    model = keras.Model(x, keras.layers.Dense(shape[-1], activation)(x))
    model.compile("sgd", loss, **compiled)
    return model


def goal(model, metric, direction, labels, weights=None):
    x = np.zeros((len(labels), *model.inputs[0].shape[1:]), "float32")
    held_out = (x, labels) if weights is None else (x, labels, weights)
    data = prepare(x, labels, validation_data=held_out)
    measured = ModelMetrics(model, ARGUMENTS)
    return goal_of(1.0, metric, direction, None, None, data, measured)


def best_of_grid(metric, labels, shape, grid, direction, weights=None):
    """The best value of a Keras metric over constant answers, computed in plain Keras."""
    values = []
    for answer in grid:
        metric.reset_state()
        answers = np.broadcast_to(np.asarray(answer, "float32"), (len(labels), *shape))
        metric.update_state(labels, answers, sample_weight=weights)
        values.append(float(metric.result()))
    return (max if direction == "max" else min)(values)


M = keras.metrics
CASES = [
    pytest.param(lambda: M.AUC(name="m"), ONE_HOT, (3,), "softmax", SIMPLEX, "max", id="auc"),
    pytest.param(
        lambda: M.AUC(multi_label=True, name="m"),
        SEVERAL, (2,), "sigmoid", SQUARE, "max", id="auc of labels",
    ),
    pytest.param(
        lambda: M.AUC(curve="PR", name="m"), SEVERAL, (2,), "sigmoid", SQUARE, "max", id="pr"
    ),
    pytest.param(
        lambda: M.BinaryAccuracy(name="m"), SEVERAL, (2,), "sigmoid", SQUARE, "max", id="binary"
    ),
    pytest.param(
        lambda: M.BinaryAccuracy(threshold=0, name="m"), ONE, (1,), None, LINE, "max", id="logits"
    ),
    pytest.param(
        lambda: M.F1Score(average="macro", threshold=0.5, name="m"),
        SEVERAL, (2,), "sigmoid", SQUARE, "max", id="f1 macro",
    ),
    pytest.param(
        lambda: M.F1Score(average="micro", threshold=0.5, name="m"),
        SEVERAL, (2,), "sigmoid", SQUARE, "max", id="f1 micro",
    ),
    pytest.param(
        lambda: M.Precision(thresholds=0.3, name="m"),
        SEVERAL, (2,), "sigmoid", SQUARE, "max", id="precision",
    ),
    pytest.param(
        lambda: M.CosineSimilarity(name="m"), ONE_HOT, (3,), "softmax", SIMPLEX, "max", id="cosine"
    ),
    pytest.param(
        lambda: M.SparseTopKCategoricalAccuracy(k=2, name="m"),
        CLASSES, (3,), "softmax", UNEQUAL, "max", id="top 2",
    ),
    pytest.param(
        lambda: M.OneHotMeanIoU(num_classes=3, name="m"),
        ONE_HOT, (3,), "softmax", SIMPLEX, "max", id="iou",
    ),
    pytest.param(
        lambda: M.SparseCategoricalAccuracy(name="m"),
        STEPS, (4, 3), "softmax", SIMPLEX, "max", id="sequences",
    ),
    pytest.param(lambda: M.R2Score(name="m"), NUMBERS[:, None], (1,), None, LINE, "max", id="r2"),
    pytest.param(
        lambda: M.MeanAbsolutePercentageError(name="m"),
        NUMBERS, (1,), None, LINE, "min", id="mape",
    ),
    pytest.param(
        lambda: M.MeanMetricWrapper(own_share, name="m"), NUMBERS, (1,), None, LINE, "max", id="own"
    ),
]  # fmt: skip


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("make", "labels", "shape", "activation", "grid", "direction"), CASES)
def test_no_constant_answer_beats_chance(make, labels, shape, activation, grid, direction, weights):
    kind = "metrics" if weights is None else "weighted_metrics"
    model = model_of(shape, activation, **{kind: [make()]})
    found = goal(model, "val_m", direction, labels, weights)
    best = best_of_grid(make(), labels, shape, grid, direction, weights)
    sign = 1 if direction == "max" else -1
    assert sign * (found.chance - best) >= -1e-6


def test_chance_of_one_curve_over_columns_is_no_half():
    labels = np.eye(4, dtype="float32")[RNG.choice(4, 400, p=[0.85, 0.05, 0.05, 0.05])]
    constant = keras.metrics.AUC()
    constant.update_state(labels, np.tile(labels.mean(0), (400, 1)))
    model = model_of((4,), "softmax", metrics=[keras.metrics.AUC(name="auc")])
    found = goal(model, "val_auc", None, labels)
    assert found.chance >= float(constant.result()) - 1e-6
    assert found.chance > 0.9
    assert "class shares" in found.note or "class" in found.note


def test_a_metric_is_known_by_its_output():
    x = keras.Input((2,))
    heads = [keras.layers.Dense(1, name=name)(x) for name in ("price", "size")]
    model = keras.Model(x, heads)
    model.compile("sgd", ["mse", "mae"], metrics=[["mae"], ["mae"]])
    inputs, labels = np.zeros((60, 2), "float32"), (NUMBERS, 2 * NUMBERS)
    data = prepare(inputs, labels, validation_data=(inputs, labels))
    measured = ModelMetrics(model, ARGUMENTS)

    def chance(metric):
        return goal_of(1.0, metric, None, None, None, data, measured).chance

    error = np.abs(NUMBERS - np.median(NUMBERS)).mean()
    assert chance("val_price_mae") == pytest.approx(error, rel=1e-5)
    assert chance("val_size_mae") == pytest.approx(2 * error, rel=1e-5)
    assert chance("val_loss") == pytest.approx(NUMBERS.var() + 2 * error, rel=1e-5)
    assert chance("val_price_loss") == pytest.approx(NUMBERS.var(), rel=1e-5)
    with pytest.raises(SearchError, match="val_price_mae, val_size_mae"):
        chance("val_mae")


@pytest.mark.parametrize(
    ("loss", "shape", "activation", "labels", "expected"),
    [
        ("binary_crossentropy", (1,), "sigmoid", ONE, [ONE.mean(), 1 - ONE.mean()]),
        (
            keras.losses.BinaryCrossentropy(from_logits=True),
            (1,), None, ONE, [ONE.mean(), 1 - ONE.mean()],
        ),
        ("sparse_categorical_crossentropy", (3,), "softmax", CLASSES, ONE_HOT.mean(0)),
    ],
)  # fmt: skip
def test_chance_of_a_crossentropy_is_entropy(loss, shape, activation, labels, expected):
    shares = np.asarray(expected)
    found = goal(model_of(shape, activation, loss), "val_loss", None, labels)
    assert found.chance == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-5)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("activation", ["softmax", None])
def test_equal_answers_are_not_all_among_the_first_k(k, activation):
    classes = RNG.choice(6, 200, p=[0.1, 0.3, 0.25, 0.15, 0.1, 0.1])
    expected = np.sort(np.bincount(classes))[::-1][:k].sum() / 200
    sparse = [M.SparseTopKCategoricalAccuracy(k, name="m")]
    one_hot = [M.TopKCategoricalAccuracy(k, name="m")]
    model = model_of((6,), activation, "sparse_categorical_crossentropy", metrics=sparse)
    assert goal(model, "val_m", "max", classes).chance == pytest.approx(expected)
    model = model_of((6,), activation, "categorical_crossentropy", metrics=one_hot)
    labels = np.eye(6, dtype="float32")[classes]
    assert goal(model, "val_m", "max", labels).chance == pytest.approx(expected)


def masked_sequences():
    tokens = RNG.integers(1, 9, (40, 6))
    tokens[np.arange(6) >= RNG.integers(1, 7, (40, 1))] = 0
    x = keras.Input((6,))
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(x)
    model = keras.Model(x, keras.layers.Dense(3, "softmax")(embedded))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, tokens, RNG.choice(3, (40, 6), p=[0.2, 0.5, 0.3])


def test_masked_places_do_not_count():
    model, tokens, labels = masked_sequences()
    data = prepare(tokens, labels, validation_data=(tokens, labels))
    found = goal_of(1.0, "val_accuracy", "max", None, None, data, ModelMetrics(model, ARGUMENTS))
    kept = labels[tokens > 0]
    assert found.chance == pytest.approx(np.bincount(kept).max() / len(kept))


def maps_of(loss, **compiled):
    x = keras.Input((8, 8, 2))
    model = keras.Model(x, keras.layers.Conv2D(4, 1, activation="softmax")(x))
    model.compile("sgd", loss, **compiled)
    return model


MAPS = RNG.choice(4, (20, 8, 8), p=[0.6, 0.2, 0.1, 0.1])
CROSS_ENTROPY = "sparse_categorical_crossentropy"


def test_chance_of_segmentation_is_of_places():
    share = np.bincount(MAPS.ravel()).max() / MAPS.size
    union = M.MeanIoU(4, sparse_y_pred=False, name="m")
    assert goal(
        maps_of(CROSS_ENTROPY, metrics=["accuracy"]), "val_accuracy", "max", MAPS
    ).chance == (pytest.approx(share))
    found = goal(maps_of(CROSS_ENTROPY, metrics=[union]), "val_m", "max", MAPS)
    assert found.chance == pytest.approx(share / 4)


def test_an_ignored_class_does_not_count():
    kept = np.bincount(MAPS[MAPS > 0])[1:] / (MAPS > 0).sum()
    entropy = -(kept * np.log(kept)).sum()
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    assert goal(maps_of(loss), "val_loss", "min", MAPS).chance == pytest.approx(entropy, rel=1e-5)


def test_weights_of_places_count():
    weights = (MAPS > 0).astype("float32")
    kept = np.bincount(MAPS[MAPS > 0])[1:] / (MAPS > 0).sum()
    model = maps_of(CROSS_ENTROPY, weighted_metrics=["accuracy"])
    found = goal(model, "val_accuracy", "max", MAPS, weights)
    assert found.chance == pytest.approx(kept.max())
    entropy = -(kept * np.log(kept)).sum() * weights.mean()
    found = goal(model, "val_loss", "min", MAPS, weights)
    assert found.chance == pytest.approx(entropy, rel=1e-5)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3, "softmax")

    def call(self, x):
        return self.head(x)


def test_a_subclassed_model_that_is_not_built_has_chance():
    model = Subclassed()
    model.compile("sgd", CROSS_ENTROPY, metrics=["accuracy"])
    x = np.zeros((60, 2), "float32")
    data = prepare(x, CLASSES, validation_data=(x, CLASSES))
    found = goal_of(1.0, "val_accuracy", "max", None, None, data, ModelMetrics(model, ARGUMENTS))
    assert found.chance == pytest.approx(np.bincount(CLASSES).max() / 60)


def test_validation_of_one_class_says_so():
    model = model_of((1,), "sigmoid", metrics=["accuracy"])
    found = goal(model, "val_accuracy", None, np.ones(20, "float32"))
    assert found.chance == 1.0
    assert "all 20 validation labels are the same (1.0)" in found.note
    assert "are the same" not in goal(model, "val_accuracy", None, ONE).note


class Near(keras.metrics.Metric):
    """The share of labels within one of the answer, counted; it has no config."""

    def __init__(self):
        super().__init__(name="m")
        self.near = self.add_weight(name="near", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = own_share(keras.ops.reshape(y_true, (-1, 1)), y_pred)
        self.near.assign_add(keras.ops.sum(hits))
        self.seen.assign_add(keras.ops.cast(keras.ops.size(hits), "float32"))

    def result(self):
        return self.near / self.seen


def test_a_metric_class_of_ones_own_is_measured():
    found = goal(model_of((1,), None, metrics=[Near()]), "val_m", "max", NUMBERS)
    best = best_of_grid(Near(), NUMBERS, (1,), LINE, "max")
    assert found.chance >= best - 1e-6


def raising(y_true, y_pred):
    raise ValueError("no constants")


def test_what_cannot_be_measured_is_asked_for():
    model = model_of((1,), None, metrics=[keras.metrics.MeanMetricWrapper(raising, name="m")])
    with pytest.raises(SearchError, match=r"val_m .*no constants.*chance="):
        goal(model, "val_m", "max", NUMBERS)
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.ActivityRegularization(0.1)(keras.layers.Dense(1)(x)))
    model.compile("sgd", "mse")
    with pytest.raises(SearchError, match=r"val_loss .*add losses.*chance="):
        goal(model, "val_loss", None, NUMBERS)
