"""Validation is apart: pipelines that share examples, against what is known of each."""

import keras
import numpy as np
import pytest
import short_searches
import tensorflow as tf

import kbatch
from kbatch.checks.check import Subject
from kbatch.checks.validation import look, shared_of
from kbatch.data.arrays import AT_ONCE
from kbatch.data.validation import LOOKED_AT, prepare
from kbatch.errors import DataError
from kbatch.results.loading import load_checks, load_records

RNG = np.random.default_rng(0)
N = 400
X, Y = RNG.normal(size=(N, 20)).astype("float32"), RNG.integers(0, 2, N)
NAMES = {"a": X[:, :5], "b": X[:, 5:]}
TOKENS, NEXT = RNG.integers(0, 50, (N, 12)), RNG.integers(0, 50, (N, 12))
WORDS = np.array([f"word {number}" for number in range(N)])
PICTURES = RNG.integers(0, 256, (N, 6, 6, 3)).astype("uint8")
BITS = RNG.integers(0, 2, (N, 3))
SHORT = RNG.integers(0, 20, (N, 2))
GREETINGS = RNG.choice([f"greeting {number}" for number in range(30)], N)


def rows(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def split(dataset, count=300):
    return dataset.take(count), dataset.skip(count)


def by_content(dataset):
    below, above = (lambda x, y: x[0] < 0), (lambda x, y: x[0] >= 0)
    return dataset.filter(below).take(99), dataset.filter(above).take(99)


def shards(dataset):
    return dataset.shard(2, 0), dataset.shard(2, 1)


def arrays(x, y=Y, count=300):
    return (x[:count], y[:count]), (x[count:], y[count:])


def anew(x=X, y=Y):
    return rows(x, y).shuffle(N, seed=1)


def then(step, pair):
    return tuple(step(part) for part in pair)


def ready(dataset):
    same = dataset.map(lambda x, y: (2 * x, y)).batch(16).map(lambda x, y: (x, 1 - y))
    return same.prefetch(2)


def one_pass(dataset):
    x, y = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.stack(x), np.stack(y)


class Parts(keras.utils.PyDataset):
    """Batches of some rows, which are drawn anew at the end of each pass if there is a pool."""

    def __init__(self, chosen, pool=None):
        super().__init__()
        self.chosen, self.pool, self.rng = chosen, pool, np.random.default_rng(1)

    def __len__(self):
        return len(self.chosen) // 20

    def __getitem__(self, number):
        own = self.chosen[20 * number : 20 * number + 20]
        return X[own], Y[own]

    def on_epoch_end(self):
        if self.pool is not None:
            self.chosen = self.rng.permutation(self.pool)[: len(self.chosen)]


def noisy(dataset):
    return dataset.map(lambda x, y: (x + tf.random.normal((20,)), y))


def sentences(numbers, size, pad=0):
    """Texts of several lengths in padded batches."""
    lengths = np.random.default_rng(2).integers(8, 30, N)
    texts = [np.random.default_rng(row).integers(1, 900, lengths[row]) for row in range(N)]
    spec = (tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.int64))
    pairs = [(texts[row], Y[row]) for row in numbers]
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec).padded_batch(
        size, padding_values=(tf.constant(pad, tf.int64), tf.constant(0, tf.int64))
    )


REFUSED = {
    "shuffled, then split": lambda: split(anew()),
    "the part to validate on comes first": lambda: split(anew(), 100)[::-1],
    "shuffled, batched, then split": lambda: split(anew().batch(20), 15),
    "noise before the split": lambda: split(noisy(anew())),
    "noise in both parts": lambda: then(noisy, split(anew())),
    "noise in shards": lambda: then(noisy, shards(anew())),
    "steps after the split": lambda: then(ready, split(anew())),
    "steps before the split": lambda: split(ready(anew()), 19),
    "a shuffle before steps": lambda: split(rows().shuffle(50).map(lambda x, y: (-x, y)), 300),
    "validation that a cache keeps": lambda: (split(anew())[0], split(anew())[1].cache()),
    "validation of one pass": lambda: (split(anew())[0], one_pass(split(anew())[1])),
    "two inputs": lambda: split(anew(NAMES)),
    "text": lambda: split(anew(WORDS)),
    "tokens": lambda: split(anew(TOKENS, NEXT)),
    "pictures": lambda: split(anew(PICTURES)),
    "few tokens, some equal by chance": lambda: split(anew(SHORT), 200),
    "a PyDataset that draws anew": lambda: (
        Parts(np.arange(300), np.arange(N)),
        (X[300:], Y[300:]),
    ),
}
TOLD = {
    "the same arrays": lambda: ((X, Y), (X, Y)),
    "the same dataset": lambda: (rows(), rows().batch(7)),
    "the same PyDataset": lambda: (Parts(np.arange(N)), Parts(np.arange(N))),
    "arrays and a dataset": lambda: ((X, Y), split(rows())[1]),
    "some rows": lambda: ((X[:310], Y[:310]), (X[300:], Y[300:])),
    "a copy of another float type": lambda: ((X, Y), (X[300:].astype("float64"), Y[300:])),
    "drawn anew once, then kept": lambda: then(lambda part: part.cache(), split(anew())),
    "copies before the split": lambda: arrays(*(np.tile(a, (5,) + (1,) * (a.ndim - 1))[
        np.random.default_rng(3).permutation(5 * N)] for a in (X, Y[:, None])), 1500),
    "text": lambda: ((WORDS, Y), (WORDS[:50], Y[:50])),
    "two inputs": lambda: ((NAMES, Y), (NAMES, Y)),
    "few tokens, some equal by chance": lambda: ((SHORT, Y), (SHORT[:100], Y[:100])),
    "bits, in the same order": lambda: ((BITS, Y), (BITS, Y)),
    "padded otherwise": lambda: (sentences(range(300), 20), sentences(range(200, N), 7)),
}  # fmt: skip
SILENT = {
    "arrays": lambda: arrays(X),
    "datasets": lambda: split(rows()),
    "split, then shuffled": lambda: then(lambda part: part.shuffle(N), split(rows())),
    "not shuffled again": lambda: split(rows().shuffle(N, 1, reshuffle_each_iteration=False)),
    "not shuffled again, without a seed": lambda: split(
        rows().shuffle(N, reshuffle_each_iteration=False).batch(20), 15
    ),
    "a PyDataset that shuffles": lambda: (
        Parts(np.arange(300), np.arange(300)),
        (X[300:], Y[300:]),
    ),
    "parts by content": lambda: by_content(anew()),
    "parts of a pool": lambda: (split(rows())[0].shuffle(N).take(99), rows().skip(300)),
    "random augmentation": lambda: (noisy(split(rows())[0]), split(rows())[1]),
    "two inputs": lambda: split(rows(NAMES)),
    "text": lambda: arrays(WORDS),
    "pictures": lambda: arrays(PICTURES),
    "bits, equal by chance": lambda: arrays(BITS),
    "few tokens, some equal by chance": lambda: arrays(SHORT),
    "greetings, equal by chance": lambda: arrays(GREETINGS),
    "inputs of another shape": lambda: ((X, Y), (X[:, :4], Y)),
    "padded, apart": lambda: (sentences(range(300), 20), sentences(range(300, N), 7)),
}  # fmt: skip


def found(training, validation):
    of_fit, batched = training if isinstance(training, tuple) else (training,), None
    if isinstance(training, tf.data.Dataset):
        batched = keras.tree.flatten(training.element_spec)[0].shape[:1] == [None]
    return look(Subject(None, prepare(*of_fit, validation_data=validation, batched=batched)))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_parts_that_are_drawn_anew_are_refused(case):
    with pytest.raises(DataError, match="reshuffle_each_iteration=False"):
        found(*case())


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_shared_examples_are_told_and_not_claimed(case):
    finding = found(*case())
    assert not finding.holds
    assert not finding.claimable
    assert "are training examples too" in finding.sentence


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_data_that_are_apart_say_nothing(case):
    finding = found(*case())
    assert finding.holds
    assert not finding.sentence


def test_a_few_natural_copies_are_told_only():
    x, y = RNG.normal(size=(1000, 4)), np.zeros(1000)
    x[800] = x[3]
    finding = found((x[:800], y[:800]), (x[600:800] + 1, y[:200]))
    assert finding.holds
    finding = found(*arrays(x, y, 800))
    assert finding.claimable
    assert finding.sentence.startswith("1 of 200 validation examples")
    assert finding.facts["shared"] == 1


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_copies_are_counted_whatever_their_order(dtype):
    x = (255 * RNG.random((70, 6, 6, 3))).astype(dtype)
    mixed = np.concatenate([x[[7, 3, 40]], x[50:67]])
    y = np.zeros(70)
    assert shared_of((x[:50], y[:50]), (mixed, y[:20])) == (3, 20)
    assert shared_of((x[:50], y[:50]), (x[50:], y[50:])) == (0, 20)


def test_inputs_that_differ_in_one_value_are_no_copies():
    x, y = RNG.integers(0, 256, (30, 6, 6, 3)).astype("uint8"), np.zeros(30)
    for place in range(108):
        other = x.copy()
        other.reshape(30, -1)[:, place] += 1  # a value that the first look leaves out or not
        assert shared_of((x, y), (other, y)) == (0, 30)


def test_many_examples_are_read_in_parts():
    x, y = RNG.normal(size=(AT_ONCE + 10, 2)), np.zeros(AT_ONCE + 10)
    assert shared_of((x, y), (x[-3000:], y[-3000:])) == (LOOKED_AT, LOOKED_AT)


def test_a_search_is_refused_before_it_trains(tmp_path):
    training, validation = split(anew(X[:, :12]))
    tuner = short_searches.tuner_of(tmp_path, max_trials=1)
    with pytest.raises(DataError, match="must stay apart"):
        tuner.search(training, validation_data=validation, verbose=0)
    assert not list(tmp_path.rglob("records.jsonl"))


def test_a_training_is_refused_before_it_trains():
    training, validation = split(anew(X[:, :12]))
    build = short_searches.build
    with pytest.raises(DataError, match="must stay apart"):
        kbatch.train(kbatch.Recipe(16), build, training, None, validation, updates=1)
    both = (X[:, :12], Y)
    _, outcome = kbatch.train(kbatch.Recipe(16), build, *both, both, updates=1)
    assert "400 of 400 validation examples" in " ".join(outcome.remarks)


def test_a_search_tells_once_of_shared_examples(points, tmp_path):
    (x, y), _ = points
    tuner = short_searches.tuner_of(tmp_path, max_trials=1)
    short_searches.search(tuner, ((x, y), (x[:200], y[:200])))
    told = [" ".join(record.outcome.remarks) for record in load_records(tuner)]
    words = "200 of 200 validation examples that were looked at are training examples too"
    assert [words in remarks for remarks in told] == [True, False]
    assert any(words in line for line in kbatch.report(tuner).remarks)
    assert load_checks(tuner)["validation"]["claimable"] is False
