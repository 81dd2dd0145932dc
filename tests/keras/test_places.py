"""Pictures and the labels that have their places move together, by the same draw."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe
from kbatch.checks import state
from kbatch.checks.check import Subject
from kbatch.data import augmentation
from kbatch.data.validation import prepare
from kbatch.errors import ModelError, RecipeError
from kbatch.models import movement
from kbatch.models.maker import ModelMaker
from kbatch.models.scopes import augmented

layers = keras.layers
RNG = np.random.default_rng(0)
SIZE = (12, 16)
# squares of one value, so that nearest pixels tell the sign without doubt
BLOCKS = RNG.choice([-1.0, 1.0], (24, SIZE[0] // 4, SIZE[1] // 4, 1))
PICTURES = np.kron(BLOCKS, np.ones((1, 4, 4, 1))).astype("float32")
PLANES = {
    "flip": lambda: augmentation.layers("flip"),
    "flip_shift": lambda: augmentation.layers("flip_shift"),
    "vertical": lambda: [layers.RandomFlip("vertical")],
    "translation": lambda: [layers.RandomTranslation(0.2, 0.2, interpolation="nearest")],
    "constant": lambda: [layers.RandomTranslation(0.3, 0.3, "constant", "nearest", fill_value=0.5)],
    "rotation": lambda: [layers.RandomRotation(0.2, "constant", "nearest", fill_value=1.0)],
    "zoom": lambda: [layers.RandomZoom((-0.3, 0.3), interpolation="nearest")],
    "pipeline": lambda: [layers.Pipeline([layers.RandomFlip(), layers.RandomRotation(0.1)])],
    "noisy": lambda: [layers.GaussianNoise(0.01), layers.RandomFlip(), layers.RandomErasing(0.2)],
}
FORMS = {
    "(H, W)": lambda mask: mask[..., 0].astype("int32"),
    "(H, W, 1)": lambda mask: mask.astype("float32"),
    "one-hot": lambda mask: np.concatenate([mask, ~mask], axis=-1).astype("float32"),
    "uint8": lambda mask: mask.astype("uint8"),
}


class Seen(keras.Model):
    """A model that keeps the batch which its loss is asked for."""

    def __init__(self):
        super().__init__()
        self.scale = layers.Dense(1)

    def call(self, x):
        return self.scale(x)

    def train_step(self, data):
        self.seen = data
        return {"loss": tf.constant(0.0)}


def step_of(pipeline, x, y, weight=None, jit_compile=False):
    """The batch that the train step of a model gets."""
    model = Seen()
    model.compile("sgd", "mse")
    data = keras.utils.pack_x_y_sample_weight(x, y, weight)
    with augmented(model, pipeline):

        @tf.function(jit_compile=jit_compile)
        def step(data):
            model.train_step(data)
            return model.seen

        seen = step(data)
    return keras.utils.unpack_x_y_sample_weight(seen)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PLANES)
def test_a_mask_stays_the_function_of_the_pixels(name, form):
    y = FORMS[form](PICTURES > 0)
    weight = (PICTURES[..., 0] > 0) + 1.0
    x, moved, weights = step_of(PLANES[name](), PICTURES, y, weight)
    known = weights.numpy() > 0
    # not filled, erased, or between two pixels
    sure = (np.abs(np.abs(x.numpy()) - 1) < 0.1) & known[..., None]
    assert sure.mean() > 0.5
    expected = FORMS[form](x.numpy() > 0)
    places_sure = np.broadcast_to(sure if expected.ndim == 4 else sure[..., 0], expected.shape)
    # one pixel beside a border of two values may be taken from either
    agree = (moved.numpy() == expected)[places_sure].mean()
    assert agree == 1 if name not in ("rotation", "zoom", "pipeline") else agree > 0.97
    assert moved.dtype == y.dtype
    np.testing.assert_array_equal(weights.numpy()[known] - 1, (moved_sign(moved) > 0)[known])
    assert not np.array_equal(moved, y)


def moved_sign(moved):
    numbers = moved.numpy()
    return numbers if numbers.ndim == 3 else numbers[..., 0]


@pytest.mark.parametrize("name", ["flip", "flip_shift"])
def test_xla_moves_them_too(name):
    mask = (PICTURES > 0).astype("float32")
    x, y, _ = step_of(augmentation.layers(name), PICTURES, mask, jit_compile=True)
    np.testing.assert_array_equal(x.numpy() > 0, y.numpy() > 0)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_labels_move_if_they_have_places(jit_compile):
    number = np.arange(24).astype("int32")
    y = {"mask": PICTURES[..., 0], "class": number, "same": (PICTURES,)}
    x, moved, _ = step_of(augmentation.layers("flip_shift"), PICTURES, y, jit_compile=jit_compile)
    np.testing.assert_array_equal(moved["mask"], x[..., 0])
    np.testing.assert_array_equal(moved["same"][0], x)
    np.testing.assert_array_equal(moved["class"], number)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_large_pictures_keep_their_places_in_every_policy(policy, own_policy):
    keras.config.set_dtype_policy(policy)
    x = RNG.normal(size=(2, 300, 400, 1)).astype("float32")
    numbers = np.arange(300 * 400).reshape(1, 300, 400) * np.ones((2, 1, 1), "int64")
    layer = layers.RandomFlip(seed=1)
    _, moved, _ = step_of([layer], x, numbers)
    ways = [numbers[0], numbers[0][::-1], numbers[0][:, ::-1], numbers[0][::-1, ::-1]]
    for found in moved.numpy():
        assert any(np.array_equal(found, way) for way in ways)


def test_pictures_are_those_that_the_layers_alone_would_make():
    keras.utils.set_random_seed(0)
    alone = PICTURES
    for layer in augmentation.layers("flip_shift"):
        alone = layer(alone, training=True)
    keras.utils.set_random_seed(0)
    x, _, _ = step_of(augmentation.layers("flip_shift"), PICTURES, PICTURES[..., 0])
    np.testing.assert_array_equal(x, alone)


class Upside(layers.Layer):
    """Moves pictures, and nobody knows it."""

    def call(self, x, training=True):
        turned = tf.random.uniform((tf.shape(x)[0], 1, 1, 1)) < 0.5
        return tf.where(turned, tf.reverse(x, [1]), x)


class Noise(layers.Layer):
    def call(self, x, training=True):
        return x + 0.1 * tf.random.normal(tf.shape(x))


MADE = {
    "moves": [
        Upside,
        lambda: layers.RandomFlip("horizontal"),
        lambda: layers.RandomTranslation(0.2, 0.2),
        lambda: augmentation.RandomShift(0.1),
    ],
    "still": [
        Noise,
        lambda: layers.RandomContrast(0.5, value_range=(0, 1)),
        lambda: layers.RandomBrightness(0.2),
        lambda: layers.RandomErasing(0.5),
        lambda: layers.GaussianDropout(0.3),
        lambda: layers.Lambda(lambda x: 255 - x),
    ],
    "mixes": [layers.MixUp, layers.CutMix],
}


@pytest.mark.parametrize(
    ("kind", "make"), [(kind, make) for kind, every in MADE.items() for make in every]
)
def test_what_a_layer_does_is_measured(kind, make):
    layer = make()
    before = [np.array(each) for each in layer.variables]
    assert movement.kind(layer, tf.TensorSpec((None, 12, 16, 3), "float32")) == kind
    for value, each in zip(before, layer.variables, strict=True):
        np.testing.assert_array_equal(value, each)


def network(loss="binary_crossentropy"):
    model = keras.Sequential(
        [keras.Input((*SIZE, 1)), layers.Conv2D(4, 3, padding="same"), layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def trained(name, build, y, **more):
    return kbatch.train(
        Recipe(8, "adam", 0.02, augmentation=name),
        build,
        PICTURES,
        y,
        (PICTURES, y),
        updates=100,
        chance=0.5,
        **more,
    )


def test_a_layer_that_cannot_move_labels_is_refused():
    kbatch.register_augmentation("test_upside", lambda: [Upside()])
    with pytest.raises(RecipeError, match="must move with it. Received: Upside"):
        trained("test_upside", network, (PICTURES > 0).astype("float32"))


def test_layers_that_mix_examples_are_refused():
    kbatch.register_augmentation("test_keras_mixup", lambda: [layers.MixUp()])
    with pytest.raises(ModelError, match="kbatch.MixUp"):
        trained("test_keras_mixup", network, (PICTURES > 0).astype("float32"))


def test_masks_of_another_size_are_refused():
    def small():
        model = keras.Sequential([keras.Input((*SIZE, 1)), layers.Conv2D(1, 2, 2)])
        model.compile("adam", "mse", metrics=["accuracy"])
        return model

    with pytest.raises(RecipeError, match="height and width of the pictures"):
        trained("flip", small, PICTURES[:, ::2, ::2])


@pytest.mark.parametrize("form", ["(H*W,)", "(H*W, 2)", "(H/2, W/2)"])
def test_masks_of_another_form_are_refused(form):
    flat = (PICTURES > 0).reshape(len(PICTURES), -1).astype("int32")
    labels = {
        "(H*W,)": flat,
        "(H*W, 2)": keras.utils.to_categorical(flat, 2),
        "(H/2, W/2)": (PICTURES[:, ::2, ::2, 0] > 0).astype("int32"),
    }[form]

    def rows():
        strides = 2 if form == "(H/2, W/2)" else 1
        parts = [keras.Input((*SIZE, 1)), layers.Conv2D(2, strides, strides)]
        shaped = [] if strides == 2 else [layers.Reshape((-1, 2))]
        model = keras.Sequential([*parts, *shaped, layers.Softmax()])
        kind = "categorical" if labels.shape[-1] == 2 else "sparse_categorical"
        model.compile("adam", f"{kind}_crossentropy", metrics=["accuracy"])
        return model

    with pytest.raises(RecipeError, match="height and width of the pictures"):
        trained("flip", rows, labels)


@pytest.mark.parametrize("name", ["flip", "flip_shift"])
def test_masks_are_learned_as_without_augmentation(name):
    """The mask is what one convolution can tell, but not of a picture that was moved alone."""
    mask = (PICTURES > 0).astype("float32")
    _, outcome = trained(name, network, mask)
    assert outcome.value > 0.99


def own_dice(y_true, y_pred):
    axes = (1, 2, 3)
    y_true = keras.ops.cast(y_true, y_pred.dtype)
    both = keras.ops.sum(y_true * y_pred, axis=axes)
    return 1 - 2 * both / (keras.ops.sum(y_true, axes) + keras.ops.sum(y_pred, axes) + 1)


@pytest.mark.parametrize(
    ("loss", "words"),
    [("binary_crossentropy", "left out of the loss"), (own_dice, "has the label 0")],
)
def test_what_is_filled_is_left_out_where_it_can_be(loss, words):
    kbatch.register_augmentation(f"test_fills_{words[:4]}", PLANES["constant"])
    mask = (PICTURES > 0).astype("float32")
    _, outcome = trained(f"test_fills_{words[:4]}", lambda: network(loss), mask)
    assert any(words in remark for remark in outcome.remarks)


def test_filled_places_have_no_gradient():
    """Labels of these would teach 0, which the pictures never show: the answer stays at 1."""

    def constant():
        model = keras.Sequential(
            [keras.Input((*SIZE, 1)), layers.Conv2D(1, 1, use_bias=True, activation="sigmoid")]
        )
        model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
        return model

    model, ones = constant(), np.ones((8, *SIZE, 1), "float32")
    model.set_weights([np.zeros((1, 1, 1, 1)), np.zeros(1)])
    filled = layers.RandomTranslation((0.5, 0.5), (0.0, 0.0), "constant", fill_value=1.0)
    with augmented(model, [filled]):
        model.fit(ones, ones, batch_size=8, verbose=0)
    # half of all places count, each with the gradient (0.5 - 1) for the bias
    assert float(model.layers[-1].bias[0]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("weight", "labels", "expected"),
    [
        (None, "mask", (2, 12, 16)),
        (np.ones(2), "mask", (2, 12, 16)),
        (np.ones((2, 1)), "mask", (2, 12, 16)),
        (np.ones((2, 12, 16, 1)), "mask", (2, 12, 16, 1)),
        (None, "class", (2,)),
    ],
)
def test_weights_of_places_have_the_shape_of_the_labels(weight, labels, expected):
    x = PICTURES[:2]
    y = {"mask": x, "class": np.zeros(2)}[labels]
    assert movement.weighed(y, weight, x, augmentation.placed(x)).shape == expected


def subject_of(build, y, name="flip"):
    data = prepare(PICTURES, y, None, (PICTURES, y))
    maker = ModelMaker(build)
    return Subject.of_training(maker, data, Recipe(8, augmentation=name))


def coordinates(loss, units=4, activation=None):
    def build():
        model = keras.Sequential(
            [keras.Input((*SIZE, 1)), layers.Flatten(), layers.Dense(units, activation)]
        )
        model.compile("adam", loss)
        return model

    return build


@pytest.mark.parametrize(
    ("loss", "labels", "told"),
    [
        ("mse", np.zeros((24, 4), "float32"), True),
        ("mae", np.zeros((24, 4), "float32"), True),
        (keras.losses.Huber(), np.zeros((24, 4), "float32"), True),
        ("categorical_crossentropy", np.eye(4, dtype="float32")[np.arange(24) % 4], False),
        ("sparse_categorical_crossentropy", np.arange(24) % 4, False),
    ],
)
def test_labels_that_may_be_coordinates_are_told_once(loss, labels, told):
    found = state.look_at_places(subject_of(coordinates(loss), labels))
    assert found.claimable
    assert found.holds is not told
    assert ("coordinates" in found.sentence) is told
    assert state.look_at_places(subject_of(coordinates(loss), labels, "none")) is None


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_classes_that_stand_along_a_picture_are_told(loss):
    columns = (PICTURES[:, 0, :, 0] > 0).astype("int32")
    y = columns if "sparse" in loss else keras.utils.to_categorical(columns, 2)

    def build():
        parts = [keras.Input((*SIZE, 1)), layers.Permute((2, 1, 3)), layers.Flatten()]
        rows = [layers.Dense(2 * SIZE[1]), layers.Reshape((SIZE[1], 2)), layers.Softmax()]
        model = keras.Sequential([*parts, *rows])
        model.compile("adam", loss)
        return model

    found = state.look_at_places(subject_of(build, y))
    assert not found.holds
    assert "along the picture" in found.sentence


def test_as_many_classes_as_pixels_are_no_mask():
    count = SIZE[0] * SIZE[1]
    y = np.eye(count, dtype="float32")[np.arange(24)]
    build = coordinates("categorical_crossentropy", count, "softmax")
    assert state.look_at_places(subject_of(build, y)).holds


def test_only_the_output_with_coordinates_is_named():
    def build():
        inputs = keras.Input((*SIZE, 1))
        flat = layers.Flatten()(inputs)
        outputs = {"box": layers.Dense(4)(flat), "kind": layers.Dense(2, "softmax")(flat)}
        model = keras.Model(inputs, outputs)
        model.compile("sgd", {"box": "mse", "kind": "sparse_categorical_crossentropy"})
        return model

    y = {"box": np.zeros((24, 4), "float32"), "kind": np.zeros(24, "int32")}
    assert "the labels box stay" in state.look_at_places(subject_of(build, y)).sentence


@pytest.mark.parametrize("name", ["flip", "flip_shift"])
def test_masks_beside_several_inputs_are_refused(name):
    def build():
        picture, age = keras.Input((*SIZE, 1), name="images"), keras.Input((1,), name="age")
        model = keras.Model({"images": picture, "age": age}, layers.Conv2D(1, 1)(picture))
        model.compile("sgd", "mse")
        return model

    x = {"images": PICTURES, "age": np.zeros((24, 1), "float32")}

    def subject(y):
        data = prepare(x, y, None, (x, y))
        return Subject.of_training(ModelMaker(build), data, Recipe(8, augmentation=name))

    with pytest.raises(RecipeError, match=f"{name} for a model of 2 inputs"):
        state.look_at_places(subject((PICTURES > 0).astype("float32")))
    assert "coordinates" in state.look_at_places(subject(np.zeros((24, 4), "float32"))).sentence


def test_a_shift_leaves_other_inputs_alone():
    shift = augmentation.RandomShift(0.3)
    moved = shift({"images": PICTURES, "age": np.ones(24)}, training=True)
    np.testing.assert_array_equal(moved["age"], 1)
    assert not np.array_equal(moved["images"], PICTURES)


def test_layers_that_mix_are_refused_beside_several_inputs():
    kbatch.register_augmentation("test_mixing_one_of_two", lambda: [layers.MixUp()])
    x = {"images": PICTURES, "age": np.zeros((24, 1), "float32")}
    data = prepare(x, np.zeros(24), None, (x, np.zeros(24)))
    recipe = Recipe(8, augmentation="test_mixing_one_of_two")
    with pytest.raises(ModelError, match="kbatch.MixUp"):
        state.look_at_places(Subject.of_training(ModelMaker(network), data, recipe))
