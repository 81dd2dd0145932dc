import argparse

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--out", default="model.keras")
args = parser.parse_args()
BATCH = 32


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 16, 16, 3)).astype("float32")
    y = (x[:, :8].mean((1, 2, 3)) > x[:, 8:].mean((1, 2, 3))).astype("int32")
    x += 1.0 * y[:, None, None, None] * np.linspace(-0.2, 0.2, 16)[None, :, None, None]
    model = keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.RandomFlip("horizontal"),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-4),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        x[:1200],
        y[:1200],
        validation_data=(x[1200:], y[1200:]),
        batch_size=BATCH,
        epochs=args.epochs,
        verbose=2,
        callbacks=[keras.callbacks.EarlyStopping(patience=3)],
    )
    print(
        "last", history.history["val_accuracy"][-1], model.evaluate(x[1200:], y[1200:], verbose=0)
    )
    model.save(args.out)


if __name__ == "__main__":
    main()
