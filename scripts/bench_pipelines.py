"""Pipelines of tf.data with and without the thread that tunes them.

Usage: python scripts/bench_pipelines.py PHOTOGRAPHS [--lives 3] [--drops 15] [--rounds 3]

- drops: seconds to drop an iterator that lived for `--lives` seconds, tuned and not, in turns;
- speeds: batches a second without tuning over those with it, medians of `--rounds` in turns, of
  JPEG files, of records of them, and of numbers with a light map. Each is read as fast as it goes,
  and with a pause of 10 ms after each batch, as a device that trains would make.

PHOTOGRAPHS is a folder of folders of JPEG files.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from kbatch.data.pipeline import untuned

AUTOTUNE = tf.data.AUTOTUNE
FILES, SIDE, SECONDS, PAUSE_SECONDS = 400, 64, 3.0, 0.01


def picture(content):
    """A decoded photograph and a label."""
    decoded = tf.io.decode_jpeg(content, channels=3)
    return tf.image.resize(decoded, (SIDE, SIDE)) / 255.0, 0


def decodable(files):
    """The files that TensorFlow decodes."""
    found = []
    for file in files:
        try:
            picture(file.read_bytes())
            found.append(file)
        except tf.errors.InvalidArgumentError:
            continue
    return found


def of_files(files):
    """Batches of JPEG files, which are read and decoded in parallel."""
    names = tf.data.Dataset.from_tensor_slices([str(file) for file in files]).shuffle(FILES)
    pictures = names.map(lambda name: picture(tf.io.read_file(name)), AUTOTUNE)
    return pictures.repeat().batch(16).prefetch(AUTOTUNE)


def of_records(folder):
    """Batches of records of JPEG files, which are read and decoded in parallel."""
    names = tf.data.Dataset.list_files(f"{folder}/*.tfrecord")
    records = names.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTOTUNE)
    return records.map(picture, AUTOTUNE).repeat().batch(16).prefetch(AUTOTUNE)


def of_numbers():
    """Batches of numbers with a light map."""
    x = np.random.default_rng(0).random((20_000, 32), "float32")
    examples = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).shuffle(1_000)
    return examples.map(lambda x, y: (2 * x, y), AUTOTUNE).repeat().batch(32).prefetch(AUTOTUNE)


def write_records(files, folder):
    """Write photographs into eight files of records."""
    for number in range(8):
        with tf.io.TFRecordWriter(f"{folder}/{number}.tfrecord") as writer:
            for file in files[number::8]:
                writer.write(file.read_bytes())


def batches_per_second(dataset, pause_seconds):
    """Batches a second of a pipeline, its first batch left out."""
    iterator, count = iter(dataset), 0
    next(iterator)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(iterator)
        count += 1
        time.sleep(pause_seconds)
    return count / (time.perf_counter() - began)


def seconds_to_drop(dataset, life_seconds):
    """Seconds to drop an iterator that lived for so long."""
    iterator, began = iter(dataset), time.perf_counter()
    while time.perf_counter() - began < life_seconds:
        next(iterator)
    began = time.perf_counter()
    del iterator
    return time.perf_counter() - began


def show_drops(dataset, drops, life_seconds):
    """Print how long iterators take to drop, tuned and not in turns."""
    tuned, plain = [], []
    for _ in range(drops):
        tuned.append(seconds_to_drop(dataset, life_seconds))
        plain.append(seconds_to_drop(untuned(dataset), life_seconds))
    for name, seconds in (("tuned", tuned), ("untuned", plain)):
        waits = sum(each > 0.1 for each in seconds)
        print(f"{name}: {waits} of {len(seconds)} waited, the longest {max(seconds):.2f} s")


def show_speed(name, dataset, pause_seconds, rounds):
    """Print how many times the batches of a tuned pipeline one that is not gives."""
    plain, tuned = [], []
    for _ in range(rounds):
        plain.append(batches_per_second(untuned(dataset), pause_seconds))
        tuned.append(batches_per_second(dataset, pause_seconds))
    ratio = statistics.median(plain) / statistics.median(tuned)
    words = "with pauses" if pause_seconds else "as fast as it goes"
    print(f"{name}, {words}: {ratio:.2f} times the batches", flush=True)


def main():
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--lives", type=float, default=3.0)
    parser.add_argument("--drops", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    files = decodable(sorted(options.photographs.glob("*/*.jpg"))[:FILES])
    if not files:
        parser.error(f"PHOTOGRAPHS must hold folders of JPEG files: {options.photographs}")
    with tempfile.TemporaryDirectory() as folder:
        write_records(files, folder)
        pipelines = {"files": of_files(files), "records": of_records(folder)}
        pipelines["numbers"] = of_numbers()
        show_drops(pipelines["numbers"], options.drops, options.lives)
        for name, pause in itertools.product(pipelines, (0.0, PAUSE_SECONDS)):
            show_speed(name, pipelines[name], pause, options.rounds)


if __name__ == "__main__":
    main()
