"""Batches by length beside one batch size: tokens a second of a small transformer on texts.

`kbatch.max_batches(lengths=…)` finds the largest batch at each length under the limit, and
`Table.buckets` fills `tf.data.Dataset.bucket_by_sequence_length` with them. Beside it are batches
of the longest text's size, padded to the longest of all and to the longest of the batch. Each way
trains the same texts in a process of its own with that limit, one after the other, three times.

    python scripts/bench_lengths.py [--limit 400MB]
"""

import argparse
import json
import os
import subprocess
import sys
import time

LENGTHS = (32, 64, 128, 256)
TEXTS, WORDS, WIDTH, BLOCKS, REPEATS = 1500, 500, 64, 4, 3


def build(hp=None):
    import keras
    from keras import layers

    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(BLOCKS):
        normal = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, WIDTH // 4)(normal, normal)])
        inner = layers.Dense(2 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(WIDTH)(inner)])
    outputs = layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def texts():
    """Texts of random words, most of them short: the median is 40 words."""
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(40), 0.8, TEXTS), 4, LENGTHS[-1]).astype(int)
    return [rng.integers(1, WORDS, length) for length in lengths]


def train(way, table):
    """Train one epoch, and print examples' tokens and seconds; the first epoch warms up."""
    import tensorflow as tf

    some = texts()
    data = tf.data.Dataset.from_generator(
        lambda: ((text, index % 2) for index, text in enumerate(some)),
        output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32)),
    ).cache()
    size = table["bucket_batch_sizes"][-1]
    if way == "buckets":
        data = data.bucket_by_sequence_length(lambda x, y: tf.size(x), **table)
    elif way == "longest of the batch":
        data = data.padded_batch(size)
    else:
        data = data.padded_batch(size, ([LENGTHS[-1]], []))
    model = build()
    data = data.prefetch(tf.data.AUTOTUNE)
    model.fit(data, verbose=0)
    began = time.perf_counter()
    model.fit(data, verbose=0)
    print(json.dumps([sum(map(len, some)), time.perf_counter() - began]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", default="400MB")
    parser.add_argument("--way")
    parser.add_argument("--table", type=json.loads)
    options = parser.parse_args()
    if options.way:
        train(options.way, options.table)
        return
    import kbatch
    from kbatch.runtime.device_memory import checked_limit

    space = kbatch.Space(optimizer="adam", policy="float32")
    table = kbatch.max_batches(
        build, (LENGTHS[-1],), space=space, memory_limit=options.limit, lengths=LENGTHS
    )
    print(table)
    limit = {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": str((checked_limit(options.limit) or 0) // 2**20),
    }
    rates = {"longest of all": [], "longest of the batch": [], "buckets": []}
    for _ in range(REPEATS):
        for way, known in rates.items():
            command = [sys.executable, __file__, "--way", way]
            command += ["--table", json.dumps(table.buckets())]
            done = subprocess.run(
                command, env={**os.environ, **limit}, capture_output=True, text=True, check=True
            )
            tokens, seconds = json.loads(done.stdout.splitlines()[-1])
            known.append(tokens / seconds)
    plain = sorted(rates["longest of all"])[REPEATS // 2]
    for way, known in rates.items():
        ratios = ", ".join(f"{each / plain:.2f}" for each in known)
        print(f"{way:<22} {ratios} times the tokens a second")


if __name__ == "__main__":
    main()
