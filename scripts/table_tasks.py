"""The tasks whose searches are recorded: data that packages ship or make, and small networks.

A task is one entry of `TASKS`. Its group is the kind of its data: what is learned from tables is
judged on groups that had no part in it. `scripts/record_table.py` trains them.
"""

import ast
import csv
import functools
import gzip
import importlib.util
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from keras import layers

WORDS, LENGTH, CHARACTERS = 2000, 32, 96
LIBRARIES = ("numpy", "scipy", "pandas", "sklearn", "keras")
PER_LIBRARY = 1000


@dataclass(frozen=True)
class TableTask:
    """A model and its data, of which recipes are recorded."""

    group: str  # kind of data
    arrays: Callable[[], tuple[np.ndarray, np.ndarray]]  # gives inputs and labels
    network: Callable[[layers.Layer], layers.Layer]  # from the inputs to the last features
    regression: bool = False

    def examples(self):
        """Return training and validation data, a fifth of all examples for the latter."""
        x, y = self.arrays()
        order = np.random.default_rng(0).permutation(len(x))
        held = order[: len(x) // 5], order[len(x) // 5 :]
        validation, training = [(x[places], y[places]) for places in held]
        return training, validation

    def build(self, x, y):
        """Return a function that builds the compiled model for such data."""

        def build():
            inputs = layers.Input(x.shape[1:], dtype=x.dtype.name)
            features = self.network(inputs)
            if self.regression:
                model = keras.Model(inputs, layers.Dense(1)(features))
                model.compile("adam", "mse", metrics=[keras.metrics.R2Score()])
                return model
            answers = layers.Dense(int(y.max()) + 1, activation="softmax")(features)
            model = keras.Model(inputs, answers)
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
            return model

        return build


def standard(x):
    """Return features of mean 0 and deviation 1."""
    x = np.asarray(x, "float32")
    return ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype("float32")


def labelled(names):
    """Return labels as numbers."""
    return np.unique(np.asarray(names), return_inverse=True)[1].astype("int32")


def target(y):
    """Return the target of a regression, standardized, as a column."""
    return standard(np.asarray(y, "float32").reshape(-1, 1))


def folder_of(package):
    """Return the folder of an installed package."""
    return Path(importlib.util.find_spec(package).origin).parent


def river_rows(file):
    """Return the rows of a file that river ships, as dictionaries."""
    data = (folder_of("river") / "datasets" / file).read_bytes()
    if file.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            data = packed.read(packed.namelist()[0])
    elif file.endswith(".gz"):
        data = gzip.decompress(data)
    return list(csv.reader(io.StringIO(data.decode())))


def river_table(file, label, drop=()):
    """Return features and the label's column of a file of river's."""
    head, *rows = river_rows(file)
    at = head.index(label)
    kept = [place for place, name in enumerate(head) if place != at and name not in drop]
    return standard([[float(row[place]) for place in kept] for row in rows]), [
        row[at] for row in rows
    ]


def segments():
    x, y = river_table("segment.csv.zip", "category")
    return x, labelled(y)


def phishing():
    x, y = river_table("phishing.csv.gz", "is_phishing")
    return x, labelled(y)


def bananas():
    rows = [row[0].split() for row in river_rows("banana.zip") if row]
    x = [[float(pair.partition(":")[2]) for pair in row[1:]] for row in rows]
    return standard(x), labelled([row[0] for row in rows])


def approval():
    x, y = river_table("trump_approval.csv.gz", "five_thirty_eight", drop=("ordinal_date",))
    return x, target(list(map(float, y)))


def made_classes():
    from sklearn.datasets import make_classification

    x, y = make_classification(
        6000, 20, n_informative=12, n_classes=5, n_clusters_per_class=2, flip_y=0.05, random_state=1
    )
    return standard(x), y.astype("int32")


def friedman(number):
    from sklearn import datasets

    make = getattr(datasets, f"make_friedman{number}")
    # the first gives also features that mean nothing
    x, y = make(n_samples=5000, noise=0.5 if number == 1 else 0.02, random_state=2)
    return standard(x), target(y)


def power_demand():
    from aeon.datasets import load_italy_power_demand

    x, y = load_italy_power_demand()
    return standard(np.transpose(x, (0, 2, 1))), labelled(y)


def one_dimensional():
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    x, y = np.concatenate([made["x"], made["x_test"]]), np.concatenate([made["y"], made["y_test"]])
    return x.astype("float32")[..., None], y.astype("int32")


def mackey_glass(steps=6000, window=32, ahead=12, delay=17):
    """Windows of the series of Mackey and Glass (1977), and its value some steps later."""
    series = np.full(steps + delay, 1.2)
    for at in range(delay, steps + delay - 1):
        before = series[at - delay]
        series[at + 1] = series[at] + 0.2 * before / (1 + before**10) - 0.1 * series[at]
    series = (series - series.mean()) / series.std()
    series = series + np.random.default_rng(3).normal(0, 0.1, len(series))
    starts = range(delay, len(series) - window - ahead)
    x = np.stack([series[at : at + window] for at in starts]).astype("float32")[..., None]
    return x, target([series[at + window + ahead - 1] for at in starts])


@functools.cache
def docstrings():
    """Docstrings of installed libraries: (library, kind, text) of as many for each library."""
    found = []
    for library in LIBRARIES:
        texts = {}
        for file in sorted(folder_of(library).rglob("*.py")):
            if "tests" in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    texts[ast.get_docstring(node)] = type(node).__name__
        texts.pop(None, None)
        rows = [(library, kind, text) for text, kind in sorted(texts.items()) if len(text) > 40]
        order = np.random.default_rng(4).permutation(len(rows))[:PER_LIBRARY]
        found += [rows[place] for place in order]
    return found


def words_of(text):
    """Return the numbers of a text's first words; 0 where it has ended."""
    words = text.lower().replace(".", " ").split()[:LENGTH]
    return [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words] + [0] * (
        LENGTH - len(words)
    )


def library_words():
    rows = docstrings()
    return np.array([words_of(row[2]) for row in rows], "int32"), labelled([r[0] for r in rows])


def kind_words():
    rows = docstrings()
    return np.array([words_of(row[2]) for row in rows], "int32"), labelled([r[1] for r in rows])


def library_characters():
    rows = docstrings()
    texts = [row[2][:CHARACTERS].ljust(CHARACTERS).encode("ascii", "replace") for row in rows]
    return np.array([list(text[:CHARACTERS]) for text in texts], "int32"), labelled(
        [r[0] for r in rows]
    )


def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x.reshape(-1, 8, 8, 1) / 16).astype("float32"), y.astype("int32")


def pictures(source, size):
    from kbatch.data import case_study

    examples = case_study.pictures(source, size)
    parts = examples.train, examples.validation
    x = np.concatenate([part[0] for part in parts])
    y = np.concatenate([part[1] for part in parts])
    return x.astype("float32") / 255, y.astype("int32").reshape(-1)


def photographs(size):
    return pictures(str(Path(__file__).parents[2] / "shared/data/PetImages"), size)


def dense(*widths, norm=False, dropout=0.0):
    """Dense layers, with batch normalization or dropout if asked for."""

    def network(x):
        x = layers.Flatten()(x)
        for width in widths:
            x = layers.Dense(width, use_bias=not norm)(x)
            x = layers.BatchNormalization()(x) if norm else x
            x = layers.ReLU()(x)
            x = layers.Dropout(dropout)(x) if dropout else x
        return x

    return network


def convolutions(*widths, norm=False):
    """Convolutions over time or over a picture, each with pooling."""

    def network(x):
        pictured = len(x.shape) == 4
        convolution, pool = (
            (layers.Conv2D, layers.MaxPooling2D)
            if pictured
            else (layers.Conv1D, layers.MaxPooling1D)
        )
        for width in widths:
            x = convolution(width, 3, padding="same", use_bias=not norm)(x)
            x = layers.BatchNormalization()(x) if norm else x
            x = pool(2)(layers.ReLU()(x))
        return layers.Flatten()(x)

    return network


def recurrent(units, kind=layers.GRU):
    return lambda x: kind(units)(x)


def attention(width, blocks=1):
    """Blocks of attention and a perceptron over a sequence, as in a transformer."""

    def network(x):
        x = layers.Dense(width)(x)
        places = layers.Embedding(x.shape[1], width)(np.arange(x.shape[1]))
        x = x + places
        for _ in range(blocks):
            normal = layers.LayerNormalization()(x)
            x = x + layers.MultiHeadAttention(2, width // 2)(normal, normal)
            normal = layers.LayerNormalization()(x)
            x = x + layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(normal))
        return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))

    return network


def embedded(network, tokens=WORDS, width=32):
    return lambda x: network(layers.Embedding(tokens, width)(x))


def averaged(x):
    return layers.GlobalAveragePooling1D()(x)


def patches(network, size=4):
    """Cut pictures into squares that a network over sequences reads."""

    def whole(x):
        x = layers.Conv2D(32, size, strides=size)(x)
        return network(layers.Reshape((-1, 32))(x))

    return whole


def residual(width, blocks=2):
    """A small residual network with batch normalization."""

    def network(x):
        x = layers.Conv2D(width, 3, strides=2, padding="same")(x)
        for _ in range(blocks):
            inner = layers.ReLU()(layers.BatchNormalization()(x))
            inner = layers.Conv2D(width, 3, padding="same")(inner)
            inner = layers.ReLU()(layers.BatchNormalization()(inner))
            x = x + layers.Conv2D(width, 3, padding="same")(inner)
        return layers.GlobalAveragePooling2D()(layers.ReLU()(x))

    return network


TASKS = {
    "segments_dense": TableTask("tabular", segments, dense(64, 64)),
    "segments_norm": TableTask("tabular", segments, dense(64, 64, norm=True)),
    "bananas_dense": TableTask("tabular", bananas, dense(32, 32)),
    "phishing_dropout": TableTask("tabular", phishing, dense(64, 64, dropout=0.3)),
    "classes_norm": TableTask("tabular", made_classes, dense(128, 64, norm=True)),
    "friedman1_dense": TableTask(
        "regression", functools.partial(friedman, 1), dense(64, 64), regression=True
    ),
    "friedman3_norm": TableTask(
        "regression", functools.partial(friedman, 3), dense(64, 64, norm=True), regression=True
    ),
    "approval_dense": TableTask("regression", approval, dense(64, 64), regression=True),
    "demand_conv": TableTask("series", power_demand, convolutions(16, 32)),
    "demand_dense": TableTask("series", power_demand, dense(64)),
    "mnist1d_conv": TableTask("series", one_dimensional, convolutions(16, 32, 32)),
    "mnist1d_dense": TableTask("series", one_dimensional, dense(128, 128)),
    "mnist1d_gru": TableTask("series", one_dimensional, recurrent(32)),
    "glass_gru": TableTask("series", mackey_glass, recurrent(24), regression=True),
    "glass_attention": TableTask("series", mackey_glass, attention(24), regression=True),
    "library_average": TableTask("text", library_words, embedded(averaged)),
    "library_conv": TableTask("text", library_words, embedded(convolutions(32, norm=True))),
    "library_attention": TableTask("text", library_words, embedded(attention(32))),
    "kind_average": TableTask("text", kind_words, embedded(averaged)),
    "characters_conv": TableTask(
        "text", library_characters, embedded(convolutions(32, 32), tokens=128, width=16)
    ),
    "digits_conv": TableTask("pictures", digits, convolutions(16, 32)),
    "digits_dense": TableTask("pictures", digits, dense(64)),
    "pets_conv": TableTask(
        "pictures", functools.partial(photographs, 32), convolutions(16, 32, 32)
    ),
    "pets_residual": TableTask("pictures", functools.partial(photographs, 32), residual(16)),
    "pets_patches": TableTask(
        "pictures", functools.partial(photographs, 32), patches(attention(32))
    ),
    "drawn_conv": TableTask(
        "pictures", functools.partial(pictures, "drawn", 32), convolutions(8, 16, norm=True)
    ),
    "drawn_residual": TableTask(
        "pictures", functools.partial(pictures, "drawn", 32), residual(16, 1)
    ),
}
