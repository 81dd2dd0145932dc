"""Build functions for the tests of `kbatch.memory`, importable by a worker."""

import os
import sys
import time

WIDTH = 4096


def dense(hp=None):
    """About 100 KB of activations per example: 1,000 examples are 100 MB."""
    import keras

    layers = [
        keras.layers.Dense(WIDTH, "gelu"),
        keras.layers.Dense(16),
        keras.layers.Dense(WIDTH, "gelu"),
    ]
    model = keras.Sequential(
        [keras.Input((16,)), *layers, keras.layers.Dense(1, "sigmoid", dtype="float32")]
    )
    model.compile("adam", "binary_crossentropy")
    return model


def uncompiled(hp=None):
    import keras

    return keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax")]
    )


def shapeless(hp=None):
    """Without a keras.Input, and uncompiled."""
    import keras

    return keras.Sequential([keras.layers.Dense(3, "softmax")])


def open_sizes(hp=None):
    """A picture of any size, uncompiled."""
    import keras

    layers = [
        keras.layers.Conv2D(4, 3),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3, "softmax"),
    ]
    return keras.Sequential([keras.Input((None, None, 3)), *layers])


def without_hp():
    return uncompiled()


def normed(hp=None):
    import keras

    inputs = keras.Input((24, 24, 3))
    x = inputs
    for _ in range(3):
        x = keras.layers.ReLU()(
            keras.layers.BatchNormalization()(keras.layers.Conv2D(32, 3, padding="same")(x))
        )
    model = keras.Model(
        inputs,
        keras.layers.Dense(10, "softmax", dtype="float32")(
            keras.layers.GlobalAveragePooling2D()(x)
        ),
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def deep(hp=None):
    """Twelve convolutions whose activations are alike: a fourth of them is enough."""
    return _deep(batch_size=None)


def fixed(hp=None):
    """The same for one batch size only."""
    return _deep(batch_size=16)


def _deep(batch_size):
    import keras

    inputs = x = keras.Input((32, 32, 3), batch_size=batch_size)
    for _ in range(12):
        x = keras.layers.ReLU()(
            keras.layers.BatchNormalization()(keras.layers.Conv2D(16, 3, padding="same")(x))
        )
    model = keras.Model(
        inputs,
        keras.layers.Dense(10, "softmax", dtype="float32")(
            keras.layers.GlobalAveragePooling2D()(x)
        ),
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def recurrent(hp=None):
    import keras

    model = keras.Sequential(
        [
            keras.Input((50,), dtype="int32"),
            keras.layers.Embedding(100, 32),
            keras.layers.LSTM(64),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def two_outputs(hp=None):
    import keras

    a, b = keras.Input((8,), name="a"), keras.Input((4, 4, 1), name="b")
    x = keras.layers.Concatenate()([a, keras.layers.Flatten()(b)])
    outputs = {
        "kind": keras.layers.Dense(5, "softmax", name="kind")(x),
        "size": keras.layers.Dense(1, name="size")(x),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("sgd", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model


def huge(hp=None):
    import keras

    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(2_000_000), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def wide_activations(hp=None):
    """Few weights, but 400 MB for a single example."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((1000, 1)),
            keras.layers.Dense(50_000),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def starving(hp=None):
    """Says that memory ran out at any size; TensorFlow itself waits 10 seconds before."""
    import keras
    import tensorflow as tf

    def starve(inputs):
        raise MemoryError

    class Starving(keras.layers.Layer):
        def call(self, inputs):
            outputs = tf.py_function(starve, [inputs], inputs.dtype)
            return tf.ensure_shape(outputs, inputs.shape)

        def compute_output_shape(self, shape):
            return shape

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16), Starving()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def few_activations(hp=None):
    """About 20 MB for a single example, so that one trains where 32 cannot be validated."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((1000, 1)),
            keras.layers.Dense(5_000),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def raises(hp=None):
    raise ZeroDivisionError("my own bug")


def nothing(hp=None):
    return None


def hangs(hp=None):
    time.sleep(600)


def dies(hp=None):
    os._exit(7)


def exits(hp=None):
    sys.exit(3)


def interrupts(hp=None):
    raise KeyboardInterrupt


def changing(hp=None):
    """As wide as an environment variable says, with layers that draw numbers, loop and branch."""
    import keras

    inputs = keras.Input((6, 4))
    x = keras.layers.LSTM(int(os.environ.get("KBATCH_TEST_WIDTH", "8")), return_sequences=True)(
        inputs
    )
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(keras.layers.Flatten()(x)))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def listed(hp=None):
    import keras

    a, b = keras.Input((8,)), keras.Input((4,))
    x = keras.layers.Concatenate()([a, b])
    model = keras.Model([a, b], [keras.layers.Dense(5, "softmax")(x), keras.layers.Dense(1)(x)])
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    return model


def from_the_inputs_of_another(hp=None):
    """As keras.io extends an application: `base.inputs` is a list."""
    import keras

    base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "relu")])
    model = keras.Model(base.inputs, [keras.layers.Dense(1)(base.outputs[0])])
    model.compile("sgd", ["mse"])
    return model


class DiesAbove:
    """A model whose step kills the process above so many examples, as an aborting library does."""

    def __init__(self, most):
        self.most = most

    def __call__(self, hp=None):
        import keras
        import tensorflow as tf

        most = self.most

        class Deadly(keras.layers.Layer):
            def call(self, inputs):
                def die(size):
                    if size > most:
                        os.kill(os.getpid(), 9)
                    return size

                size = tf.py_function(die, [tf.shape(inputs)[0]], tf.int32)
                with tf.control_dependencies([size]):
                    return tf.identity(inputs)

            def compute_output_shape(self, shape):
                return shape

        model = keras.Sequential(
            [keras.Input((16,)), Deadly(), keras.layers.Dense(WIDTH), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse", jit_compile=False)
        return model


def unet(hp=None):
    """Encoder and decoder with skip connections: large tensors that live long and short."""
    import keras
    from keras import layers

    def block(x, filters):
        for _ in range(2):
            x = layers.ReLU()(
                layers.BatchNormalization()(
                    layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
                )
            )
        return x

    inputs = x = keras.Input((64, 64, 3))
    skips = []
    for filters in (8, 16, 32):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 64)
    for filters, skip in zip((32, 16, 8), reversed(skips), strict=True):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skip]), filters)
    model = keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax", dtype="float32")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def refusing(hp=None):
    """A model whose step fails from 200 examples on, as kernels do that count by 32 bits."""
    import keras
    import tensorflow as tf

    class Counted(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                tf.debugging.assert_less(tf.shape(x)[0], 200, "tensor size <= int32 max")
            return x

        def compute_output_shape(self, shape):
            return shape

    return with_first(Counted())


def trying(hp=None):
    """`dense` with 40 MB of scratch in the first step of each batch size, as cuDNN has it."""
    import keras
    import tensorflow as tf

    class Scratch(keras.layers.Layer):
        def build(self, shape):
            self.tried = self.add_weight(shape=(), dtype="int32", trainable=False, name="tried")

        def call(self, x, training=False):
            if not training:
                return x
            size = tf.shape(x)[0]

            def algorithms():
                return tf.reduce_sum(tf.random.normal((size * 0 + 10_000_000,))) * 0.0

            new = tf.cond(tf.equal(self.tried, size), lambda: 0.0, algorithms)
            with tf.control_dependencies([new]):
                self.tried.assign(size)
            return x + new

        def compute_output_shape(self, shape):
            return shape

    return with_first(Scratch())


def not_compiled(hp=None):
    """`dense` whose author turned XLA off."""
    model = dense()
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    return model


def with_first(layer):
    """`dense` with one more layer."""
    import keras

    model = keras.Sequential([keras.Input((16,)), layer, *dense().layers])
    model.compile("adam", "binary_crossentropy")
    return model


def stateful(hp=None):
    """With a layer that keeps its state from one batch to the next."""
    import keras

    layers = [keras.layers.LSTM(2, stateful=True, name="kept"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4, 1), batch_size=8), *layers])
    model.compile("sgd", "mse")
    return model


def sized(hp):
    """With a width of the user's."""
    import keras

    units = hp.Int("units", 4, 64)
    layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("sgd", "mse")
    return model
