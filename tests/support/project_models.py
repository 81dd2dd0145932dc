"""Small compiled models in the style of keras.io's examples, each with one batch of data."""

import keras
import numpy as np
from keras import layers, ops

TOKENS, WORDS = 10, 40


def momentum():
    """An optimizer that has slots, and is traced faster than Adam."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


def bert():
    """Token and position embeddings, masked self-attention, and a head for every token."""
    inputs = keras.Input((TOKENS,), dtype="int32")
    positions = layers.Embedding(TOKENS, 8)(ops.cumsum(ops.ones_like(inputs), axis=1) - 1)
    x = layers.Add()([layers.Embedding(WORDS, 8)(inputs), positions])
    seen = ops.expand_dims(ops.not_equal(inputs, 0), 1)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x, attention_mask=seen)
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(attended)]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(16, "gelu")(x))]))
    model = keras.Model(inputs, layers.Dense(WORDS)(x))
    model.compile(
        momentum(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    return model, (words(), words())


def masked_transformer():
    """Masks that an embedding hands on to attention, and an average that leaves padding out."""
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(
            layers.Add()([x, layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)])
        )
        x = layers.LayerNormalization()(
            layers.Add()([x, layers.Dense(8)(layers.Dense(16, "gelu")(x))])
        )
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(x)))
    model.compile(momentum(), "binary_crossentropy", jit_compile=False)
    return model, (words(), np.arange(8) % 2)


def translator():
    """A GRU encoder, a GRU decoder that begins in its state, and masked attention between them."""
    source, target = (
        keras.Input((TOKENS,), dtype="int32", name="source"),
        keras.Input((TOKENS,), dtype="int32", name="target"),
    )
    encoded, forward, back = layers.Bidirectional(
        layers.GRU(6, return_sequences=True, return_state=True)
    )(layers.Embedding(WORDS, 8, mask_zero=True)(source))
    state = layers.Concatenate()([forward, back])
    decoded = layers.GRU(12, return_sequences=True, dropout=0.2)(
        layers.Embedding(WORDS, 8, mask_zero=True)(target), initial_state=state
    )
    attended = layers.Attention()([decoded, encoded])
    x = layers.LayerNormalization()(layers.Add()([decoded, attended]))
    model = keras.Model(
        {"source": source, "target": target}, layers.Dense(WORDS, "softmax")(layers.Dropout(0.3)(x))
    )
    model.compile("rmsprop", "sparse_categorical_crossentropy", jit_compile=False)
    return model, ({"source": words(), "target": words(1)}, words(2))


def bidirectional():
    """Bidirectional LSTMs after Masking, with dropout inside of their loops."""
    inputs = keras.Input((TOKENS, 5))
    x = layers.Masking()(inputs)
    x = layers.Bidirectional(
        layers.LSTM(6, return_sequences=True, dropout=0.2, recurrent_dropout=0.2)
    )(x)
    x = layers.Bidirectional(layers.LSTM(6, dropout=0.2, recurrent_dropout=0.2))(x)
    model = keras.Model(inputs, layers.Dense(1)(layers.Dense(8, "relu")(x)))
    model.compile(momentum(), "mse", jit_compile=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, TOKENS, 5)).astype("float32")
    x[:, 7:] = 0
    return model, (x, rng.normal(size=(8, 1)))


def wavenet():
    """Dilated causal convolutions with gates, residual and skip connections."""
    inputs = keras.Input((32, 2))
    x, skips = layers.Conv1D(6, 1)(inputs), []
    for dilation in (1, 2, 4, 8):
        one, other = (
            layers.Conv1D(6, 2, padding="causal", dilation_rate=dilation, activation=kind)(x)
            for kind in ("tanh", "sigmoid")
        )
        gated = layers.Multiply()([one, other])
        skips.append(layers.Conv1D(6, 1)(gated))
        x = layers.Add()([x, layers.Conv1D(6, 1)(gated)])
    x = layers.Conv1D(6, 1, activation="relu")(layers.ReLU()(layers.Add()(skips)))
    model = keras.Model(inputs, layers.Conv1D(4, 1, activation="softmax")(x))
    model.compile(momentum(), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(8, 32, 2)).astype("float32"), rng.integers(0, 4, (8, 32)))


def unet():
    """Skip connections over a bottleneck, with BatchNormalization."""
    inputs = x = keras.Input((16, 16, 3))
    skips = []
    for width in (4, 8):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.2)(layers.Conv2D(16, 3, padding="same", activation="relu")(x))
    for width, skip in zip((8, 4), skips[::-1], strict=True):
        x = layers.Concatenate()(
            [layers.Conv2DTranspose(width, 3, strides=2, padding="same")(x), skip]
        )
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
    model = keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))
    model.compile(momentum(), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.random((8, 16, 16, 3)).astype("float32"), rng.integers(0, 3, (8, 16, 16)))


class Sampling(layers.Layer):
    """Draws from a normal distribution; adds its divergence as a loss and a metric."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seeds = keras.random.SeedGenerator(1)
        self.divergence = keras.metrics.Mean(name="divergence")

    def call(self, inputs):
        mean, log_variance = inputs
        divergence = -0.5 * ops.mean(1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        self.add_loss(divergence)
        self.divergence.update_state(divergence)
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(
            ops.shape(mean), seed=self.seeds
        )


def vae():
    """A variational autoencoder of two nested models, with a loss and a metric of a layer."""
    images = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(images)
    x = layers.Dense(8, "relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
    encoder = keras.Model(
        images, [mean, log_variance, Sampling()([mean, log_variance])], name="encoder"
    )
    code = keras.Input((2,))
    x = layers.Reshape((4, 4, 4))(layers.Dense(64, "relu")(code))
    decoder = keras.Model(
        code,
        layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(x),
        name="decoder",
    )
    model = keras.Model(images, decoder(encoder(images)[2]))
    model.compile(momentum(), "binary_crossentropy", jit_compile=False)
    x = np.random.default_rng(0).random((8, 8, 8, 1)).astype("float32")
    return model, (x, x)


def encoder():
    inputs = keras.Input((8, 8, 3))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, activation="relu")(inputs))
    x = layers.Conv2D(6, 3, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)), name="encoder")


def triplet():
    """One encoder for an anchor, a like and an unlike picture, and the loss of their distances."""
    three = [keras.Input((8, 8, 3), name=name) for name in ("anchor", "like", "unlike")]
    shared = encoder()
    anchor, like, unlike = (shared(one) for one in three)
    distances = ops.stack(
        [ops.sum(ops.square(anchor - other), axis=-1) for other in (like, unlike)], axis=-1
    )
    model = keras.Model(three, distances)
    model.compile(
        momentum(), lambda y, d: ops.maximum(d[:, 0] - d[:, 1] + 0.5, 0.0), jit_compile=False
    )
    rng = np.random.default_rng(0)
    return model, ([rng.random((8, 8, 8, 3)).astype("float32") for _ in three], np.zeros((8, 2)))


def siamese():
    """One encoder for two pictures."""
    two = [keras.Input((8, 8, 3), name=name) for name in ("one", "other")]
    shared = encoder()
    distance = ops.sum(ops.square(shared(two[0]) - shared(two[1])), axis=-1, keepdims=True)
    model = keras.Model(two, layers.Dense(1, "sigmoid")(layers.BatchNormalization()(distance)))
    model.compile(momentum(), "binary_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (
        [rng.random((8, 8, 8, 3)).astype("float32") for _ in two],
        (np.arange(8) % 2)[:, None],
    )


def heads():
    """Three heads with losses of their own on one trunk, whose layers have losses too."""
    inputs = x = keras.Input((12,))
    for _ in range(4):
        x = layers.Dense(12, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(x)
    outputs = {
        "kind": layers.Dense(4, "softmax", name="kind")(layers.Dense(8, "relu")(x)),
        "size": layers.Dense(1, name="size")(layers.Dense(8, "relu")(x)),
        "seen": layers.Dense(1, "sigmoid", name="seen")(layers.Dense(8, "relu")(x)),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        momentum(),
        {"kind": "sparse_categorical_crossentropy", "size": "mse", "seen": "binary_crossentropy"},
        jit_compile=False,
    )
    rng = np.random.default_rng(0)
    y = {
        "kind": rng.integers(0, 4, 8),
        "size": rng.normal(size=(8, 1)),
        "seen": rng.integers(0, 2, (8, 1)),
    }
    return model, (rng.normal(size=(8, 12)).astype("float32"), y)


def video():
    """A whole model for each picture of a film, and the average of what it says of them."""
    frame = keras.Input((16, 16, 3))
    x = frame
    for _ in range(2):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    cnn = keras.Model(frame, layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x)), name="cnn")
    film = keras.Input((4, 16, 16, 3))
    x = layers.GlobalAveragePooling1D()(layers.TimeDistributed(cnn)(film))
    model = keras.Model(film, layers.Dense(3, "softmax")(x))
    model.compile(momentum(), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.random((4, 4, 16, 16, 3)).astype("float32"), rng.integers(0, 3, 4))


def convlstm():
    """Next pictures from recurrent convolutions."""
    inputs = keras.Input((4, 8, 8, 1))
    x = layers.BatchNormalization()(
        layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True, activation="relu")(inputs)
    )
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(x)
    model = keras.Model(inputs, layers.Conv3D(1, 3, padding="same", activation="sigmoid")(x))
    model.compile(momentum(), "binary_crossentropy", jit_compile=False)
    x = np.random.default_rng(0).random((4, 4, 8, 8, 1)).astype("float32")
    return model, (x, x)


def nerf():
    """A deep stack that takes its input in again halfway."""
    inputs = x = keras.Input((20, 9))
    for index in range(8):
        x = layers.Dense(12, "relu")(x)
        if index == 4:
            x = layers.Concatenate()([x, inputs])
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile(momentum(), "mse", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(8, 20, 9)).astype("float32"), rng.normal(size=(8, 20, 4)))


def group_resnet():
    """Residual blocks with GroupNormalization."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    for width in (8, 8, 16):
        y = layers.Conv2D(width, 3, padding="same")(
            layers.Activation("swish")(layers.GroupNormalization(4)(x))
        )
        y = layers.Conv2D(width, 3, padding="same")(
            layers.Dropout(0.1)(layers.Activation("swish")(layers.GroupNormalization(4)(y)))
        )
        x = layers.Add()([y, x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)])
    model = keras.Model(inputs, layers.Dense(4, "softmax")(layers.GlobalAveragePooling2D()(x)))
    model.compile(momentum(), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.random((8, 16, 16, 3)).astype("float32"), rng.integers(0, 4, 8))


def mixer():
    """Blocks that mix patches, then channels."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 4, strides=4)(inputs))
    for _ in range(3):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Permute((2, 1))(layers.Dense(16)(layers.Dense(12, "gelu")(y)))
        x = layers.Add()([x, y])
        y = layers.Dense(8)(
            layers.Dropout(0.1)(layers.Dense(12, "gelu")(layers.LayerNormalization()(x)))
        )
        x = layers.Add()([x, y])
    model = keras.Model(inputs, layers.Dense(4, "softmax")(layers.GlobalAveragePooling1D()(x)))
    model.compile(momentum(), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.random((8, 16, 16, 3)).astype("float32"), rng.integers(0, 4, 8))


def words(seed=0):
    """Texts that end in padding."""
    found = np.random.default_rng(seed).integers(1, WORDS, (8, TOKENS))
    found[:, 7:] = 0
    return found


BUILDS = (
    *(
        bert,
        masked_transformer,
        translator,
        bidirectional,
        wavenet,
        unet,
        vae,
        triplet,
        siamese,
        heads,
        video,
        convlstm,
        nerf,
        group_resnet,
    ),
    mixer,
)
