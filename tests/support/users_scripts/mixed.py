import numpy as np
import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 20)).astype("float32")
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype("int32")

inputs = tf.keras.Input((20,))
h = tf.keras.layers.Dense(64, activation="relu")(inputs)
h = tf.keras.layers.Lambda(lambda t: tf.math.tanh(t))(h)
outputs = tf.keras.layers.Dense(2, activation="softmax", dtype="float32")(h)
model = tf.keras.Model(inputs, outputs)
model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["acc"])
dataset = tf.data.Dataset.from_tensor_slices((x[:800], y[:800])).shuffle(800).batch(50).repeat()
model.fit(dataset, steps_per_epoch=16, epochs=3, validation_data=(x[800:], y[800:]), verbose=2)
model.save("mixed.keras")
