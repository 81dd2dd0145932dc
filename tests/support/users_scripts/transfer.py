import keras
import numpy as np
from keras import layers

BATCH_SIZE = 16
rng = np.random.default_rng(1)
labels = rng.integers(0, 2, 240)
images = rng.normal(0.5, 0.2, (240, 32, 32, 3)).astype("float32")
images[labels == 1, :16] += 0.3

base = keras.applications.MobileNetV2(
    input_shape=(32, 32, 3), include_top=False, weights=None, alpha=0.35
)
# stands for weights="imagenet", which a machine without a network cannot load
base.set_weights([w + 0.01 * rng.normal(size=w.shape) for w in base.get_weights()])
base.trainable = False

inputs = keras.Input((32, 32, 3))
x = layers.RandomFlip("horizontal")(inputs)
x = base(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(images, labels, validation_split=0.25, epochs=1, batch_size=BATCH_SIZE, verbose=2)

base.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-5), loss="binary_crossentropy", metrics=["accuracy"]
)
history = model.fit(
    images, labels, validation_split=0.25, epochs=3, batch_size=BATCH_SIZE, verbose=2
)
print(history.history["val_accuracy"])
model.save("transfer.keras")
