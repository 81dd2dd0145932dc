"""A KerasTuner project of images that changes three lines to use kbatch.

A comment on each changed line shows the line before.

Usage: python examples/images_from_keras_tuner.py [--folder FOLDER_OF_CLASS_FOLDERS] [--trials 4]
[--epochs 10]
"""

import argparse
from pathlib import Path

import keras
import keras_tuner

import kbatch

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--folder", help="one folder of images per class; without it, pictures are drawn"
)
parser.add_argument("--trials", type=int, default=4)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--out", default="runs")
options = parser.parse_args()


def drawn(folder):
    """Make a folder of 400 drawn cats and dogs, in place of your own."""
    from PIL import Image

    from kbatch.data.drawn import drawn_pets

    for name, pictures in drawn_pets(200, 64).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(folder / name / f"{number}.png")
    return folder


folder = options.folder or drawn(Path(options.out) / "drawn")
train, validation = keras.utils.image_dataset_from_directory(
    folder,
    label_mode="binary",
    image_size=(64, 64),
    batch_size=32,
    validation_split=0.25,
    subset="both",
    seed=1,
)


def build(hp):
    """Build the project's own model with its own hyperparameters, as before."""
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(4),
            keras.layers.Flatten(),
            keras.layers.Dense(hp.Int("units", 16, 64, step=16), activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.0, 0.5)),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = keras_tuner.BayesianOptimization(
    kbatch.HyperModel(build),  # was: build
    objective=kbatch.objective(),  # was: "val_accuracy"
    max_trials=options.trials,
    directory=options.out,
    project_name="images",
)  # the third line is `import kbatch`
tuner.search(
    train,
    validation_data=validation,
    epochs=options.epochs,
    callbacks=[
        keras.callbacks.TensorBoard(f"{options.out}/images-tensorboard"),
        keras.callbacks.EarlyStopping("val_loss", patience=5),
    ],
)

print(kbatch.report(tuner))
recipe = kbatch.best_recipe(tuner)
values = tuner.get_best_hyperparameters()[0].values
model, outcome = kbatch.train(
    recipe, build, train, validation_data=validation, epochs=options.epochs, values=values
)
model.save(f"{options.out}/images-best.keras")  # loads without kbatch
result = f"{outcome.value:.3f} held after {outcome.train_seconds:.1f} s"
print(f"{recipe}: {result}, saved as {options.out}/images-best.keras")
