"""A search over the recipes of your own model, on your own arrays.

Usage: python examples/own_project.py
"""

import keras
import keras_tuner

import kbatch
from kbatch.data.case_study import pictures

data = pictures("drawn", image_size=32)  # your own arrays here


def build(hp):
    """Build your model as it is; your own hyperparameters are searched together with kbatch's."""
    width = hp.Choice("width", [32, 64])
    layers = [
        keras.Input((32, 32, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(4),
    ]
    model = keras.Sequential(
        [
            *layers,
            keras.layers.Flatten(),
            keras.layers.Dense(width, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


space = kbatch.Space(policy="float32", augmentation=("none", "flip"))
tuner = keras_tuner.RandomSearch(
    kbatch.HyperModel(build, space, seconds_per_trial=3),
    objective=kbatch.objective(),
    max_trials=4,
    directory="runs",
    project_name="own",
)
tuner.search(*data.train, validation_data=data.validation)
trials = kbatch.results.load("runs/own").sort_values("score", ascending=False)
columns = ["trial", "recipe", "score", "val_accuracy", "examples_per_second"]
print(trials[columns].to_string(index=False))

runs = kbatch.confirm(tuner, *data.train, validation_data=data.validation, top=2, seeds=2)
print(runs.groupby(["baseline", "recipe"])["val_accuracy"].agg(["mean", "std"]))
