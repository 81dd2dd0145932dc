"""A model for your own pictures, searched from the command line without a script.

Usage, in this folder, with one folder of pictures per class in FOLDER:
    kbatch search pictures_model:build --data FOLDER --image-size 32

The last layer has three outputs: change `CLASSES` to the number of your folders.
"""

import keras

CLASSES, SIZE = 3, 32


def build(hp):
    """Return the model; its hyperparameters are searched together with the recipes."""
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Rescaling(1 / 255)])
    for filters in (16, 32):
        model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(keras.layers.MaxPooling2D(2))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dropout(hp.Choice("dropout", [0.0, 0.3])))
    model.add(keras.layers.Dense(CLASSES, "softmax", dtype="float32"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
