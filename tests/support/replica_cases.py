"""Trainings on one device and on two logical CPUs, for the tests of several devices.

All are of float64, and each compares losses and weights. TensorFlow takes logical devices only at
its start, so `main` runs in a process of its own and prints the differences.
"""

import contextlib
import json
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np


@dataclass(frozen=True)
class Case:
    """A training: a model, a recipe, and what else `fit` takes."""

    build: str = "plain"
    recipe: dict = field(default_factory=dict)
    class_weight: dict | None = None
    weighted: bool = False
    policy: str = "float64"
    overflows: bool = False


SGD = {"batch_size": 16, "optimizer": "sgd", "learning_rate": 0.1}
ADAM = {"batch_size": 16, "optimizer": "adam", "learning_rate": 0.01}
OWN = {"batch_size": 16, "optimizer": "compiled", "learning_rate": None}
PASSES = {"micro_batch_size": 4}
CASES = {
    "sgd": Case(recipe=SGD),
    "adam": Case(recipe=ADAM),
    "sgd accumulating": Case(recipe=SGD | PASSES),
    "adam accumulating": Case(recipe=ADAM | PASSES),
    "clipped": Case(recipe=SGD | {"clip_norm": 0.05}),
    "clipped, accumulating": Case(recipe=SGD | PASSES | {"clip_norm": 0.05}),
    "decay, accumulating": Case(
        recipe=SGD | PASSES | {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.01}
    ),
    "lamb": Case(recipe=ADAM | {"optimizer": "lamb"}),
    "lars": Case(recipe=SGD | {"optimizer": "lars", "learning_rate": 1.0}),
    "class weights": Case(recipe=SGD, class_weight={0: 1.0, 1: 3.0, 2: 0.5}),
    "class weights, accumulating": Case(
        recipe=ADAM | PASSES, class_weight={0: 1.0, 1: 3.0, 2: 0.5}
    ),
    "sample weights": Case(recipe=SGD | PASSES, weighted=True),
    "label smoothing": Case(recipe=SGD | {"label_smoothing": 0.1}),
    "batch normalization": Case("normal", SGD),
    "batch normalization, recompute": Case("normal", SGD | {"recompute": "minimal"}),
    "group normalization": Case("normal", SGD | PASSES | {"normalization": "group"}),
    "recompute, accumulating": Case(recipe=ADAM | PASSES | {"recompute": "minimal"}),
    "augmented": Case(recipe=SGD | {"augmentation": "doubled"}),
    "a compiled schedule, accumulating": Case("scheduled", OWN | PASSES),
    "a compiled average": Case("averaged", OWN),
    "a subclassed model": Case("subclassed", ADAM),
    "dicts and two outputs": Case("branched", ADAM | PASSES),
    "an embedding, accumulating": Case("embedded", ADAM | PASSES),
    "float16": Case(recipe=SGD, policy="mixed_float16"),
    "float16 accumulating": Case(recipe=SGD | PASSES, policy="mixed_float16"),
    "overflow on one device": Case(recipe=SGD | PASSES, policy="mixed_float16", overflows=True),
}
KERAS = "Keras alone, clipped"
# of float16, whose sums depend on the order
TOLERANCE = {"float64": 1e-10, "mixed_float16": 1e-3}


def examples(case):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 6)), rng.integers(0, 3, 64)
    if case.overflows:
        x[5] = 1e6
    if case.build == "embedded":
        x = rng.integers(0, 9, (64, 6))
    if case.build == "branched":
        return {"a": x, "b": x[:, ::-1].copy()}, {"kind": y, "size": x[:, :1]}
    return x, y


def models():
    import keras
    from keras import layers

    loss, metrics = "sparse_categorical_crossentropy", ["accuracy"]

    def head(**named):
        return layers.Dense(3, "softmax", **named)

    def stack(*inner, optimizer="sgd", inputs=(6,)):
        model = keras.Sequential([keras.Input(inputs), *inner, layers.Dense(8, "relu"), head()])
        model.compile(optimizer, loss, metrics=metrics)
        return model

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.head = layers.Dense(8, "relu"), head()

        def call(self, x):
            return self.head(self.inner(x))

    def subclassed():
        model = Subclassed()
        model.compile("sgd", loss, metrics=metrics)
        return model

    def branched():
        a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
        x = layers.Dense(8, "relu")(layers.Concatenate()([a, b]))
        outputs = {"kind": head(name="kind")(x), "size": layers.Dense(1, name="size")(x)}
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile("sgd", {"kind": loss, "size": "mse"}, loss_weights={"kind": 1.0, "size": 0.3})
        return model

    def embedded():
        return stack(layers.Embedding(9, 4), layers.Flatten())

    def scheduled():
        return stack(
            optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 6))
        )

    return {
        "plain": stack,
        "normal": lambda: stack(layers.Dense(8), layers.BatchNormalization(), layers.ReLU()),
        "scheduled": scheduled,
        "averaged": lambda: stack(optimizer=keras.optimizers.SGD(0.1, use_ema=True)),
        "subclassed": subclassed,
        "branched": branched,
        "embedded": embedded,
    }


def strategy():
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def trained(case, devices):
    """Losses of each pass, weights after two passes over the data, and an uneven validation."""
    import keras

    from kbatch.callbacks.horizon import measure_validation
    from kbatch.data.validation import prepare
    from kbatch.models.maker import ModelMaker
    from kbatch.recipe import Recipe
    from kbatch.training.pace import RunOptions
    from kbatch.training.run import fit_arguments, recipe_scope

    keras.config.set_dtype_policy(case.policy)
    x, y = examples(case)
    weights = np.linspace(0.1, 2, 64) if case.weighted else None
    data = prepare(x, y, weights, validation_data=(x, y), validation_batch_size=21)
    with devices:
        recipe = Recipe(**case.recipe)
        object.__setattr__(recipe, "policy", case.policy)  # float64 is no policy of a recipe
        model = ModelMaker(models()[case.build]).make(recipe)
        options = RunOptions(seed=3, own_policy=case.policy, class_weight=case.class_weight)
        losses, after = [], []
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
        )
        arguments = fit_arguments(recipe, data.training, options) | {"epochs": 2}
        with recipe_scope(model, recipe, options):
            model.fit(callbacks=[watch], **arguments)
            measured = measure_validation(model, data.validation)
            # Keras' losses of single outputs are means of the means of batches
            after = [measured[name] for name in ("loss", "accuracy") if name in measured]
        assert "apply" not in vars(model.optimizer)  # the optimizer is as it was
        return losses, after, [weight.numpy() for weight in model.weights]


def difference(case, two):
    first, second = (trained(case, each) for each in (contextlib.nullcontext(), two.scope()))
    return max(
        float(np.max(np.abs(_finite(one) - _finite(other))))
        for ones, others in zip(first, second, strict=True)
        for one, other in zip(ones, others, strict=True)
    )


def _finite(values):
    """NaN equals NaN, as the loss of an overflowing batch is; a weight must be finite anyway."""
    return np.nan_to_num(np.asarray(values, "float64"), nan=-1.0, posinf=-1.0)


def plain_keras(two):
    """How far off Keras is by itself, where each device clips the gradient of its own part."""
    from kbatch.models import replicas

    own, replicas.device = replicas.device, SimpleNamespace(replicas=lambda: 1)
    try:
        return difference(CASES["clipped"], two)
    finally:
        replicas.device = own


def main(*names):
    import keras

    from kbatch.data import augmentation

    keras.config.set_floatx("float64")
    augmentation.register_augmentation("doubled", lambda: [keras.layers.Rescaling(2.0)])
    two, found = strategy(), {}
    for name in names or [*CASES, KERAS]:
        found[name] = plain_keras(two) if name == KERAS else difference(CASES[name], two)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
