import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)


def shapes(count):
    images = rng.normal(0, 0.3, (count, 32, 32, 1)).astype("float32")
    masks = np.zeros((count, 32, 32, 1), "uint8")
    for image, mask in zip(images, masks):
        row, column = rng.integers(4, 20, 2)
        image[row : row + 8, column : column + 8] += 1
        mask[row : row + 8, column : column + 8] = 1
    return images, masks


def get_model():
    inputs = keras.Input((32, 32, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    skip = x
    x = layers.MaxPooling2D()(x)
    x = layers.SeparableConv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.concatenate([x, skip])
    return keras.Model(inputs, layers.Conv2D(2, 1, padding="same")(x))


x_train, y_train = shapes(300)
x_val, y_val = shapes(60)
model = get_model()
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
callbacks = [keras.callbacks.ModelCheckpoint("unet.keras", save_best_only=True)]
model.fit(
    x_train,
    y_train,
    epochs=3,
    batch_size=32,
    validation_data=(x_val, y_val),
    callbacks=callbacks,
    verbose=2,
)
print(keras.models.load_model("unet.keras").evaluate(x_val, y_val, verbose=0))
