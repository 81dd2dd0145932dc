"""The check of validation: no example to validate on is trained on, in any pass over the data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.checks.check import Check, Finding, Subject
from kbatch.data.arrays import as_arrays, common_length, cut
from kbatch.data.datasets import are_drawn_anew, bytes_of_one
from kbatch.data.validation import HeldOut, PaddedForm, Pass, evenly_spread, looked_at
from kbatch.errors import DataError

# All chosen by hand.
SECONDS = 0.75  # of reading, in each of two passes over the training data
SHARED = 0.01  # share of the validation examples above which nothing can be claimed
ERRORS = 4  # standard errors by which more must be shared than examples share by chance
PLAUSIBLE = 1e-5  # equal examples that are expected by chance, above which chance is reckoned with
UNLIKELY = 1e-6  # probability that two data sets are the same by chance
DATASETS = (tf.data.Dataset, keras.utils.PyDataset)


@dataclass(frozen=True)
class Shared:
    """The validation examples that are training examples too."""

    found: np.ndarray  # which of those that were looked at
    chance: float  # the share that would be expected if training and validation data were apart
    error: float  # the standard error of that share
    plausible: bool  # whether examples may well be equal by chance
    differs: bool  # whether two whole passes over the training data share different ones

    @property
    def surplus(self) -> float:
        """Float, the share above the one expected by chance, 0 if it may be an error."""
        more = float(self.found.mean()) - self.chance
        return more if more > ERRORS * self.error else 0.0

    @property
    def told(self) -> bool:
        """Whether the user is told."""
        return self.surplus > 0 if self.plausible else bool(self.found.any())

    @property
    def matters(self) -> bool:
        """Whether so many are shared that a gain may be one of remembering."""
        return self.surplus > SHARED


def shared(held_out: HeldOut, passes: Sequence[Pass], examples: int) -> Shared:
    """Return the validation examples that are shared with passes over the training data.

    Where equal inputs may come by chance, such as few tokens, labels are compared too, and the
    share of training examples that have an equal among themselves is the one expected.
    """
    first, count = passes[0], len(held_out)
    read = first.keys.shape[1]
    plausible = read * first.by_chance >= PLAUSIBLE
    which = int(plausible)
    found = [one.found[which] for one in passes]
    differs = any(not np.array_equal(found[0], other) for other in found)
    twins = _twins(first.keys, plausible) if plausible or held_out.discrete else 0.0
    if plausible and _is_same(held_out, first, examples):
        twins, found = 0.0, [np.ones(count, bool)]
    chance = min(1.0, twins * (len(passes) if differs else 1))
    error = math.sqrt(chance * (1 - chance) * (1 / count + 1 / read))
    whole = all(one.complete for one in passes)
    return Shared(np.any(found, axis=0), chance, error, plausible, whole and differs)


def shared_of(training: Any, validation: Any) -> tuple[int, int] | None:
    """Count the validation examples that are training examples too, and those looked at.

    Returns a tuple of both counts; `None` where examples may be equal by chance, or have other
    parts.
    """
    held, learned = (
        tuple(as_arrays(part) for part in data[:2] if part is not None)
        for data in (validation, training)
    )
    if len(held) < 2 or len(learned) < 2:
        return None
    examples = common_length(held)
    held_out = HeldOut.of(cut(held), evenly_spread(examples), PaddedForm(learned))
    if held_out is None:
        return None
    found = shared(held_out, [Pass.of(cut(learned), held_out, 2 * SECONDS)], examples)
    count = int(found.found.sum())
    return (count, len(held_out)) if found.told or not count else None


def look(subject: Subject) -> Finding | None:
    """Compare validation examples with two passes over the training data.

    Up to 1,000 validation examples, or 128 MB, are compared with as many training examples as are
    read in 0.75 seconds of each pass. Random augmentation makes others, which are not found.
    """
    if subject.data is None:
        return None
    data, source = subject.data, subject.data.training
    given = getattr(source, "given", None)
    if given is not None and are_drawn_anew(given, data.validation):
        raise _refusal("take, skip or shard after a shuffle: both parts")
    form = PaddedForm(source.element_spec, source.padding)
    examples = int(data.fingerprint["validation"]["examples"])
    count = looked_at(examples, bytes_of_one(source.element_spec))
    rows = evenly_spread(examples, count) if data.kept else np.arange(count)
    # Data that are kept are read to their end, which fills the cache for all trainings.
    batches = data.validation.as_numpy_iterator() if data.arrays is None else cut(data.arrays)
    held_out = HeldOut.of(batches if data.kept else _begun(batches, len(rows)), rows, form)
    if held_out is None or not len(held_out):
        return None
    passes = [Pass.of(source.one_pass(), held_out, SECONDS) for _ in range(2)]
    if not passes[0].keys.size:
        return None
    found = shared(held_out, passes, examples)
    drawn = data.first_pass is not None and not np.isin(held_out.sums, data.first_pass).all()
    if found.matters and (found.differs or drawn):
        counted = (
            f"{int(found.found.sum()):,} of {len(found.found):,} validation examples in two passes "
            "over the training data"
        )
        changing = "the validation data" if drawn else "the training data"
        raise _refusal(f"{counted}, and {changing}")
    return _finding(found, passes)


def _finding(found: Shared, passes: Sequence[Pass]) -> Finding:
    counted, all_of_them = int(found.found.sum()), len(found.found)
    facts = {
        "shared": counted,
        "looked_at": all_of_them,
        "training_examples_read": int(passes[0].keys.shape[1]),
    }
    if not found.told:
        # Some that are equal by chance tell nothing.
        return Finding(holds=True, facts={} if counted else facts)
    sentence = (
        f"{counted:,} of {all_of_them:,} validation examples that were looked at are training "
        "examples too"
    )
    if found.matters:
        sentence += ", so nothing can be claimed: validate on others"
    return Finding(False, sentence, not found.matters, facts)


def _refusal(received: str) -> DataError:
    return DataError(
        "Examples to validate on must stay apart from the training data in every pass",
        f"{received} are drawn anew in each pass",
        "Split before shuffling, or pass shuffle(…, reshuffle_each_iteration=False) before take "
        "and skip",
    )


def _twins(keys: np.ndarray, labelled: bool) -> float:
    """The share of examples that are equal to another one."""
    numbers = keys[0] * np.uint64(3) + keys[1] if labelled else keys[0]
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return float((counts[places] > 1).mean())


def _is_same(held_out: HeldOut, training: Pass, examples: int) -> bool:
    """Whether the training data are the validation data, example by example in their order."""
    if not training.complete or training.keys.shape[1] != examples:
        return False
    own = held_out.keys
    if not np.array_equal(own, training.keys[:, held_out.rows]):
        return False
    agreeing = float((own == np.roll(own, 1, axis=1)).all(axis=0).mean())
    return agreeing ** len(held_out) < UNLIKELY


def _begun(batches: Iterable[Any], examples: int) -> Iterator[Any]:
    """Iterate over batches until so many examples were in them, or the time is over."""
    read, end = 0, time.perf_counter() + SECONDS
    for batch in batches:
        yield batch
        read += len(keras.tree.flatten(batch)[0])
        if read >= examples or time.perf_counter() > end:
            return


VALIDATION = Check(
    "validation",
    "No example to validate on is trained on, in any pass over the data",
    "Splits that are drawn anew are refused; where examples are shared, a confirmation claims "
    "nothing",
    look,
)
