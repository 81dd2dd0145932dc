"""Accumulation equals the whole batch for any loss of the outputs; the oracle is plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.errors import ModelError

ops, layers = keras.ops, keras.layers
N, PASS, UPDATES, RATE = 24, 6, 4, 0.1
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 6))
PICTURES = rng.normal(size=(N, 8, 8, 2))
MASKS = (PICTURES[..., :1] > 0.3).astype("float64")
LABELS = (rng.uniform(size=(N, 4)) < rng.uniform(size=(N, 1)) ** 2).astype("float64")
CLASSES = rng.integers(0, 4, N)
WEIGHTS = rng.uniform(0.1, 2.0, N)
TOKENS = rng.integers(1, 9, (N, 5)) * (np.arange(5) < rng.integers(1, 6, (N, 1)))


def rmse(y, p):
    return ops.sqrt(ops.mean(ops.square(y - p)))


def own_sum(y, p):
    return 0.02 * ops.sum(ops.square(y - p))


def own_count(y, p):
    counted = ops.cast(y > 0, p.dtype)
    return ops.sum(ops.square(y - p) * counted) / (ops.sum(counted) + 1e-3)


def in_batch(y, p):
    """A contrastive loss: the two halves of an output are each other's partners."""
    left, right = ops.split(p, 2, axis=-1)
    scores = ops.matmul(ops.normalize(left), ops.transpose(ops.normalize(right))) / 0.2
    return keras.losses.sparse_categorical_crossentropy(
        ops.arange(ops.shape(scores)[0]), scores, from_logits=True
    )


def by_batch_statistics(y, p):
    share = ops.mean(y)
    return keras.losses.binary_crossentropy(y, p) * (1 + ops.mean(y, axis=-1) / (share + 1e-3))


def bce_and_flat_dice(y, p):
    overlap = 2 * ops.sum(y * p) / (ops.sum(y) + ops.sum(p))
    return keras.losses.binary_crossentropy(y, p) + 1 - overlap


def dense(activation=None, *more):
    return [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(4, activation), *more]


def small():
    """Outputs so small that sums over a batch do not diverge."""
    return dense(None, layers.Rescaling(0.1))


def unet():
    inputs = keras.Input((8, 8, 2))
    down = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
    low = layers.Conv2D(4, 3, padding="same", activation="tanh")(layers.MaxPool2D()(down))
    joined = layers.Concatenate()([layers.UpSampling2D()(low), down])
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(joined))


CASES = {
    "dice": (keras.losses.Dice, lambda: dense("sigmoid"), LABELS),
    "tversky": (keras.losses.Tversky, lambda: dense("sigmoid"), LABELS),
    "circle": (keras.losses.Circle, lambda: dense(None, layers.UnitNormalization()), CLASSES),
    "contrastive": (lambda: in_batch, dense, LABELS),
    "rmse": (lambda: rmse, dense, LABELS),
    "own sum": (lambda: own_sum, dense, LABELS),
    "own count": (lambda: own_count, dense, LABELS),
    "batch statistics": (lambda: by_batch_statistics, lambda: dense("sigmoid"), LABELS),
    "bce and dice": (lambda: bce_and_flat_dice, lambda: dense("sigmoid"), LABELS),
    "sum reduction": (lambda: keras.losses.MeanSquaredError(reduction="sum"), small, LABELS),
    "no reduction": (lambda: keras.losses.MeanSquaredError(reduction="none"), small, LABELS),
    "unet": (keras.losses.Dice, unet, MASKS),
}
ADDS_UP = {
    "mse": (lambda: "mse", dense, LABELS),
    "bce": (lambda: "binary_crossentropy", lambda: dense("sigmoid"), LABELS),
    "focal": (keras.losses.BinaryFocalCrossentropy, lambda: dense("sigmoid"), LABELS),
    "from logits": (
        lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        dense,
        CLASSES,
    ),
}


class Weights(keras.callbacks.Callback):
    """Keeps the weights after each update, since kbatch puts back the best."""

    def on_train_batch_end(self, batch, logs=None):
        self.last = self.model.get_weights()


@pytest.fixture
def float64():
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


def compiled(parts, loss, **more):
    """Build a model of `parts()` with its layers in floatx, compiled with SGD."""

    def build(hp=None):
        keras.utils.set_random_seed(0)
        model = parts() if callable(parts) else parts
        if isinstance(model, list):
            model = keras.Sequential(model)
        if keras.config.floatx() == "float64":
            model = keras.models.clone_model(model, clone_function=_in_float64)
        model.compile(keras.optimizers.SGD(RATE), loss(), **more)
        return model

    return build


def _in_float64(layer):
    return type(layer).from_config({**layer.get_config(), "dtype": "float64"})


def whole(build, x, y, weights=None):
    """The weights of plain Keras after updates on the whole batch."""
    model = build()
    for _ in range(UPDATES):
        model.train_on_batch(x, y, sample_weight=weights)
    return model.get_weights()


def trained(build, x, y, weights=None, micro=PASS, updates=UPDATES, callbacks=(), **fields):
    """The outcome of training by kbatch."""
    recipe = kbatch.Recipe(N, "compiled", None, micro_batch_size=micro, **fields)
    judged = {"metric": "val_loss", "direction": "min", "chance": 1e9}
    held_out = (x + 1 if x.dtype.kind == "f" else x, y)
    given = {"updates": updates, "callbacks": [*callbacks], "sample_weight": weights, **judged}
    return kbatch.train(recipe, build, x, y, held_out, **given)[1]


def in_passes(build, x, y, weights=None, micro=PASS, **fields):
    """The weights of kbatch after the same updates in passes, and the outcome."""
    kept = Weights()
    outcome = trained(build, x, y, weights, micro, callbacks=[kept], **fields)
    return kept.last, outcome


def assert_equals_whole(build, x, y, weights=None, tolerance=2e-6, **fields):
    """In passes the weights are those of plain Keras; returns the outcome."""
    own, outcome = in_passes(build, x, y, weights, **fields)
    assert difference(whole(build, x, y, weights), own) < tolerance
    return outcome


def difference(first, second):
    """The largest difference, relative to the largest weight."""
    pairs = list(zip(first, second, strict=True))
    scale = max(float(np.max(np.abs(one))) for one, _ in pairs)
    return max(float(np.max(np.abs(one - other))) for one, other in pairs) / scale


def data_of(name, y):
    x = PICTURES if name == "unet" else X
    kind = keras.config.floatx()
    return x.astype(kind), y if y.dtype.kind == "i" else y.astype(kind)


@pytest.mark.parametrize("name", CASES)
def test_a_loss_that_couples_examples_equals_the_whole_batch(name, float64):
    loss, parts, y = CASES[name]
    x, y = data_of(name, y)
    build = compiled(parts, loss)
    own, outcome = in_passes(build, x, y)
    assert difference(whole(build, x, y), own) < 1e-12
    assert any("is not the mean over its passes" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("name", ADDS_UP)
def test_a_loss_that_is_a_mean_trains_as_before(name, float64):
    loss, parts, y = ADDS_UP[name]
    x, y = data_of(name, y)
    build = compiled(parts, loss)
    own, outcome = in_passes(build, x, y)
    assert difference(whole(build, x, y), own) < 1e-12
    assert not any("passes" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("name", ADDS_UP)
def test_exact_accumulation_can_be_asked_for(name):
    loss, parts, y = ADDS_UP[name]
    x, y = data_of(name, y)
    assert_equals_whole(compiled(parts, loss), x, y, accumulation="exact")


@pytest.mark.parametrize("name", ["dice", "rmse", "unet", "batch statistics"])
def test_coupled_losses_in_single_precision(name):
    loss, parts, y = CASES[name]
    assert_equals_whole(compiled(parts, loss), *data_of(name, y), tolerance=1e-6)


@pytest.mark.parametrize("loss", [rmse, keras.losses.Dice(), "mse"], ids=["rmse", "dice", "mse"])
def test_weights_of_examples_count_as_in_the_whole_batch(loss):
    build = compiled(lambda: dense("sigmoid"), lambda: loss)
    assert_equals_whole(build, *data_of("", LABELS), WEIGHTS.astype("float32"))


@pytest.mark.parametrize("fields", [{"jit_compile": True}, {"recompute": "sqrt"}])
def test_it_is_exact_with_xla_and_recompute(fields):
    deep = lambda: [keras.Input((6,)), *(layers.Dense(6, "tanh") for _ in range(9))]  # noqa: E731
    x = X.astype("float32")
    outcome = assert_equals_whole(compiled(deep, lambda: rmse), x, x, **fields)
    assert ("recompute" in fields) == bool(outcome.plan)


@pytest.mark.parametrize("training", ["sam:0.05", "proximal:0.1"])
def test_other_methods_see_the_loss_of_the_whole_batch(training):
    build, (x, y) = compiled(lambda: dense("sigmoid"), keras.losses.Dice), data_of("", LABELS)
    at_once, in_parts = (
        in_passes(build, x, y, micro=micro, training=training)[0] for micro in (None, PASS)
    )
    assert difference(at_once, in_parts) < 2e-6


class Noted(keras.Model):
    """The sum of its outputs, and which of them are not zero."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        whole = tf.equal(tf.shape(y_pred)[0], N)  # a trace serves all sizes, so its own is unknown
        kept = ops.cast(y_pred != 0, "float32")
        self.kept.assign(tf.cond(whole, lambda: kept, self.kept.read_value))
        return ops.sum(y_pred)


class Kept(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.weights = self.model.get_layer("dense").get_weights()[0]
        self.kept = self.model.kept.numpy()


def test_dropout_drops_the_same_units_in_both_forward_passes():
    # of the sum of drop(w x) the gradient by w is the sum of x over the units kept
    def build(hp=None):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        outputs = layers.Dense(4, use_bias=False, name="dense")(inputs)
        model = Noted(inputs, layers.Dropout(0.5)(outputs))
        model.kept = tf.Variable(np.zeros((N, 4), "float32"), False, shape=(None, 4))
        model.compile(keras.optimizers.SGD(RATE), "mse")
        return model

    ones, (_, y), end = np.ones((N, 6), "float32"), data_of("", LABELS), Kept()
    trained(build, ones, y, updates=1, callbacks=[end], accumulation="exact")
    start = build().get_layer("dense").get_weights()[0]
    assert 0.2 < end.kept.mean() < 0.8
    moved = RATE * 2.0 * end.kept.sum(axis=0)  # units that are kept are scaled by 2
    assert difference([start - moved], [end.weights]) < 2e-6


def test_batch_normalization_keeps_statistics_once_a_pass():
    parts = lambda: [*dense(), layers.BatchNormalization()]  # noqa: E731
    build, (x, y) = compiled(parts, lambda: "mse"), data_of("", LABELS)
    averaged, _ = in_passes(build, x, y)
    exact, _ = in_passes(build, x, y, accumulation="exact")
    assert difference(averaged, exact) < 2e-6


def masked():
    inputs = keras.Input((5,), dtype="int32")
    embedded = layers.Embedding(9, 6, mask_zero=True)(inputs)
    return keras.Model(
        inputs, layers.Dense(9, "softmax")(layers.LSTM(6, return_sequences=True)(embedded))
    )


def tutorial(y, p):
    counted = ops.cast(y != 0, p.dtype)
    each = keras.losses.sparse_categorical_crossentropy(y, p)
    return ops.sum(each * counted) / ops.sum(counted)


@pytest.mark.parametrize(
    "loss",
    ["sparse_categorical_crossentropy", tutorial, "ignore"],
    ids=["keras", "tutorial", "ignored class"],
)
def test_padded_texts_with_masks(loss):
    ignoring = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    build = compiled(masked, lambda: ignoring if loss == "ignore" else loss)
    assert_equals_whole(build, TOKENS, TOKENS)


def two_outputs():
    inputs = keras.Input((5,), dtype="int32")
    embedded = layers.Embedding(9, 6, mask_zero=True)(inputs)
    words = layers.Dense(9, "softmax", name="words")(embedded)
    kind = layers.Dense(4, "sigmoid", name="kind")(layers.GlobalAveragePooling1D()(embedded))
    return keras.Model(inputs, {"words": words, "kind": kind})


@pytest.mark.parametrize(
    "of_kind", ["binary_crossentropy", keras.losses.Dice()], ids=["bce", "dice"]
)
def test_several_outputs_with_masks_and_loss_weights(of_kind):
    losses = {"words": "sparse_categorical_crossentropy", "kind": of_kind}
    build = compiled(two_outputs, lambda: losses, loss_weights={"words": 0.3, "kind": 2.0})
    assert_equals_whole(build, TOKENS, {"words": TOKENS, "kind": LABELS.astype("float32")})


class Adding(layers.Layer):
    def __init__(self, reduce, **arguments):
        super().__init__(**arguments)
        self.reduce = reduce

    def call(self, x):
        self.add_loss(0.01 * self.reduce(ops.square(x)))
        return x


@pytest.mark.parametrize("loss", ["mse", rmse], ids=["mse", "rmse"])
def test_a_mean_that_a_layer_adds_is_part_of_both_ways(loss):
    parts = lambda: [*dense(), Adding(ops.mean)]  # noqa: E731
    assert_equals_whole(compiled(parts, lambda: loss), *data_of("", LABELS))


@pytest.mark.parametrize(
    "reduce",
    [ops.sum, lambda x: ops.sum(x, axis=-1), lambda x: ops.sqrt(ops.mean(x))],
    ids=["sum", "one for each example", "root"],
)
def test_what_a_layer_adds_otherwise_is_refused_by_name(reduce):
    parts = lambda: [*dense(), Adding(reduce, name="extra")]  # noqa: E731
    build, (x, y) = compiled(parts, lambda: "mse"), data_of("", LABELS)
    with pytest.raises(ModelError, match="accumulates differently: the loss that extra adds"):
        in_passes(build, x, y)


class OwnLoss(keras.Model):
    """A loss in `compute_loss` that couples examples and reads a weight besides the outputs."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sqrt(ops.mean(ops.square(y - y_pred))) + 0.01 * ops.sum(
            ops.square(self.trainable_variables[0])
        )


def test_an_own_compute_loss_equals_the_whole_batch():
    def build(hp=None):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        model = OwnLoss(inputs, layers.Dense(4)(layers.Dense(8, "tanh")(inputs)))
        model.compile(keras.optimizers.SGD(RATE), "mse")
        return model

    outcome = assert_equals_whole(build, *data_of("", LABELS))
    assert any("OwnLoss.compute_loss" in remark for remark in outcome.remarks)


def own_step(loss):
    class OwnStep(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                value = loss(y, self(x, training=True))
            gradients = tape.gradient(value, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": value}

    def build(hp=None):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        model = OwnStep(inputs, layers.Dropout(0.3)(layers.Dense(4)(inputs)))
        model.compile(keras.optimizers.SGD(RATE), "mse")
        return model

    return build


def test_an_own_train_step_that_adds_up_trains_in_passes():
    x, y = data_of("", LABELS)
    _, outcome = in_passes(own_step(lambda y, p: ops.mean(ops.square(y - p))), x, y)
    assert outcome.updates == UPDATES


@pytest.mark.parametrize("loss", [in_batch, rmse, own_sum], ids=lambda loss: loss.__name__)
def test_an_own_train_step_that_does_not_is_refused(loss):
    x, y = data_of("", LABELS)
    with pytest.raises(ModelError, match=r"accumulates differently: OwnStep\.train_step"):
        in_passes(own_step(lambda y, p: ops.mean(loss(y, p))), x, y)


def test_one_pass_needs_no_check():
    parts = lambda: [*dense(), Adding(ops.sum)]  # noqa: E731
    build = compiled(parts, lambda: rmse)
    outcome = trained(build, *data_of("", LABELS), micro=None, updates=1)
    assert not any("mean over its passes" in remark for remark in outcome.remarks)
