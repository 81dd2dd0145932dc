import keras
import keras_tuner as kt
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 20)).astype("float32")
y = (x[:, :5].sum(1) + 0.5 * x[:, 5] * x[:, 6] > 0).astype("int32")
x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]


def model_builder(hp):
    model = keras.Sequential()
    hp_units = hp.Int("units", min_value=32, max_value=128, step=32)
    model.add(keras.layers.Dense(units=hp_units, activation="relu"))
    model.add(keras.layers.Dense(2))
    hp_learning_rate = hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=hp_learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


tuner = kt.BayesianOptimization(
    model_builder,
    objective="val_accuracy",
    max_trials=30,
    directory="my_dir",
    project_name="intro_to_kt",
    overwrite=True,
)
tuner.search_space_summary()
stop_early = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
tuner.search(x_train, y_train, epochs=6, validation_split=0.2, callbacks=[stop_early])
best_hps = tuner.get_best_hyperparameters(num_trials=1)[0]
print(f"units {best_hps.get('units')}, learning rate {best_hps.get('learning_rate')}")

model = tuner.hypermodel.build(best_hps)
history = model.fit(x_train, y_train, epochs=8, validation_split=0.2)
per_epoch = history.history["val_accuracy"]
best_epoch = per_epoch.index(max(per_epoch)) + 1
print("best epoch", best_epoch, "of", len(per_epoch))

hypermodel = tuner.hypermodel.build(best_hps)
hypermodel.fit(x_train, y_train, epochs=best_epoch)  # the last epochs need no validation
print("[test loss, test accuracy]:", hypermodel.evaluate(x_test, y_test))
hypermodel.save("tuner.keras")
