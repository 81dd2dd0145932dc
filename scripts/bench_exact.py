"""The cost of exact accumulation: a Dice U-Net and a contrastive encoder, in time and peak bytes.

Usage: python scripts/bench_exact.py [--batch-size 128] [--passes 8] [--updates 12] [--rounds 3]
[--out FILE]

Three ways take turns in each round, each in a process of its own with a CPU that tells its bytes:

- whole: the batch in one pass;
- mean: passes whose gradients are averaged, which is another training for these losses;
- exact: passes whose loss is taken once, of the outputs of all of them.

The script prints the medians over the rounds, and each way beside the whole batch and the mean.
`weights` is the largest difference of a weight from the whole batch's after the updates, relative
to the largest weight.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WAYS = ("whole", "mean", "exact")
MODELS = ("dice unet", "contrastive encoder")
COLUMNS = ("model", "way", "batch_size", "passes", "round", "update_ms", "peak_mb", "weights")
SIDE = 64


def dice_unet():
    import keras

    layers = keras.layers

    def block(x, width):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        return layers.Conv2D(width, 3, padding="same", activation="relu")(x)

    def build(hp=None):
        inputs = keras.Input((SIDE, SIDE, 3))
        skips, x = [], inputs
        for width in (8, 16, 32):
            x = block(x, width)
            skips.append(x)
            x = layers.MaxPool2D()(x)
        x = block(x, 64)
        for width, skip in zip((32, 16, 8), reversed(skips), strict=True):
            x = block(layers.Concatenate()([layers.UpSampling2D()(x), skip]), width)
        model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
        model.compile(keras.optimizers.SGD(0.01), keras.losses.Dice())
        return model

    return build


def in_batch_contrastive(y, p):
    import keras

    left, right = keras.ops.split(p, 2, axis=-1)
    scores = keras.ops.matmul(keras.ops.normalize(left), keras.ops.transpose(right)) / 0.1
    same = keras.ops.arange(keras.ops.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(same, scores, from_logits=True)


def contrastive_encoder():
    import keras

    layers = keras.layers

    def build(hp=None):
        encoder = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 3)),
                *(layers.Conv2D(w, 3, strides=2, activation="relu") for w in (32, 64, 128)),
                layers.GlobalAveragePooling2D(),
                layers.Dense(64),
                layers.UnitNormalization(),
            ]
        )
        first, second = keras.Input((SIDE, SIDE, 3)), keras.Input((SIDE, SIDE, 3))
        both = layers.Concatenate()([encoder(first), encoder(second)])
        model = keras.Model([first, second], both)
        model.compile(keras.optimizers.SGD(0.01), in_batch_contrastive)
        return model

    return build


def data_of(model, examples):
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, SIDE, SIDE, 3)).astype("float32")
    if model == "dice unet":
        return x, (x[..., :1] > rng.normal(size=(examples, 1, 1, 1))).astype("float32")
    noise = 0.1 * rng.normal(size=x.shape).astype("float32")
    return (x, x + noise), np.zeros((examples, 1), "float32")


def train(model, way, batch_size, passes, updates):
    """Train one way, and return milliseconds per update, megabytes at the peak, and weights."""
    import keras

    import kbatch
    from kbatch.checks import accumulation

    if way == "mean":  # against what is measured: this is what other tools do
        accumulation.coupled = lambda model, batches: ""
    kept = {}

    class Last(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept["weights"] = self.model.get_weights()

    x, y = data_of(model, batch_size)
    recipe = kbatch.Recipe(
        batch_size,
        "compiled",
        None,
        micro_batch_size=None if way == "whole" else batch_size // passes,
    )
    few = keras.tree.map_structure(lambda array: array[:8], (x, y))
    _, outcome = kbatch.train(
        recipe,
        {"dice unet": dice_unet, "contrastive encoder": contrastive_encoder}[model](),
        x,
        y,
        few,
        updates=updates,
        metric="val_loss",
        direction="min",
        chance=99.0,
        callbacks=[Last()],
    )
    flat = [float(value) for weight in kept["weights"] for value in weight.ravel()]
    return {
        "update_ms": 1e3 * outcome.median_update_seconds,
        "peak_mb": (outcome.peak_bytes or 0) / 1e6,
        "flat": flat,
    }


def apart(command):
    """Run one way in a process of its own."""
    environment = {
        **os.environ,
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(command)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(**json.loads(options.one))))
        return
    import rows

    for model in MODELS:
        found = {way: [] for way in WAYS}
        for number in range(options.rounds):
            whole = None
            for way in WAYS:
                told = apart(
                    {
                        "model": model,
                        "way": way,
                        "batch_size": options.batch_size,
                        "passes": options.passes,
                        "updates": options.updates,
                    }
                )
                flat = told.pop("flat")
                whole = whole or flat
                scale = max(map(abs, whole))
                off = max(abs(a - b) for a, b in zip(whole, flat, strict=True)) / scale
                found[way].append(told)
                rows.tell(
                    options.out,
                    COLUMNS,
                    {
                        "model": model,
                        "way": way,
                        "batch_size": options.batch_size,
                        "passes": options.passes if way != "whole" else 1,
                        "round": number,
                        "update_ms": round(told["update_ms"], 1),
                        "peak_mb": round(told["peak_mb"], 1),
                        "weights": f"{off:.1e}",
                    },
                )
        median = {
            way: {
                name: statistics.median(each[name] for each in found[way])
                for name in ("update_ms", "peak_mb")
            }
            for way in WAYS
        }
        for peer in ("whole", "mean"):
            time = median["exact"]["update_ms"] / median[peer]["update_ms"]
            peak = median["exact"]["peak_mb"] / median[peer]["peak_mb"]
            print(f"{model}: exact / {peer}: time {time:.2f}, peak {peak:.2f}")


if __name__ == "__main__":
    main()
