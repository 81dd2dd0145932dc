import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(0)
x = rng.normal(size=(1200, 12, 12, 1)).astype("float32")
y = (x[:, :6].mean((1, 2, 3)) > x[:, 6:].mean((1, 2, 3))).astype("float32")


class MyHyperModel(keras_tuner.HyperModel):
    def build(self, hp):
        inputs = keras.Input((12, 12, 1))
        h = layers.Conv2D(hp.Choice("filters", [4, 8]), 3, activation="relu")(inputs)
        h = layers.Flatten()(h)
        if hp.Boolean("dense"):
            h = layers.Dense(16, activation="relu")(h)
        outputs = layers.Dense(1, activation="sigmoid")(h)
        model = keras.Model(inputs, outputs)
        optimizer = hp.Choice("optimizer", ["adam", "rmsprop"])
        model.compile(optimizer, loss="binary_crossentropy", metrics=["AUC"])
        return model

    def fit(self, hp, model, x, y, validation_data=None, **kwargs):
        batch_size = hp.Int("batch_size", 16, 128, step=16, default=32)
        train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(batch_size)
        return model.fit(train, validation_data=validation_data, **kwargs)


tuner = keras_tuner.Hyperband(
    MyHyperModel(),
    objective=keras_tuner.Objective("val_AUC", direction="max"),
    max_epochs=6,
    directory="results",
    project_name="own_fit",
)
tuner.search(
    x[:900],
    y[:900],
    validation_data=(x[900:], y[900:]),
    callbacks=[keras.callbacks.TerminateOnNaN()],
)
tuner.results_summary(num_trials=2)
best = tuner.get_best_models(num_models=1)[0]
print("AUC", best.evaluate(x[900:], y[900:], verbose=0)[1])
best.save("hyperband.keras")
