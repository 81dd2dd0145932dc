"""The check of shapes: batches have few shapes, since a new one may be compiled or tuned for."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import EXAMPLES, Subject

# Chosen by hand: as many shapes as a dataset in buckets has, and batches and seconds of a look.
FEW = 4
BATCHES = 64
SECONDS = 2.0


def look(subject: Subject) -> Finding | None:
    """Count the shapes among the first batches of data whose examples differ in shape.

    Args:
        subject: What is about to train.
    """
    if subject.data is None:
        return None
    source = subject.data.training
    if all(part.shape.is_fully_defined() for part in tf.nest.flatten(source.element_spec)):
        return Finding(holds=True)
    size = subject.recipes[0].examples_per_pass if subject.recipes else EXAMPLES
    shapes, longest, batches = _seen(source, min(size, source.examples))
    facts = {"shapes": len(shapes), "batches": batches, "longest": longest}
    if len(shapes) <= FEW:
        return Finding(holds=True, facts=facts)
    why = "the longest decides what fits, and kernels may be tuned for each new one"
    if True in subject.compilations:
        why = "XLA compiles a step for each new one, for seconds on the clock"
    return Finding(
        holds=False,
        sentence=f"the first {batches} batches have {len(shapes)} shapes, up to {longest}: {why}; "
        "pad to few lengths (padded_shapes=), or use bucket_by_sequence_length",
        facts=facts,
    )


def _seen(source: Any, size: int) -> tuple[set[Any], str, int]:
    """The shapes of inputs among the first batches, the largest sizes, and the batches read."""
    shapes: set[Any] = set()
    began, batches = time.monotonic(), 0
    for batch in source.unshuffled(size).take(BATCHES):
        shapes.add(tuple(tuple(part.shape[1:]) for part in tf.nest.flatten(batch[0])))
        batches += 1
        if time.monotonic() - began > SECONDS:
            break
    parts = zip(*shapes, strict=True)
    longest = [tuple(map(max, zip(*sizes, strict=True))) for sizes in parts]
    return shapes, ", ".join(map(str, longest)), batches


SHAPES = Check(
    "shapes",
    "Batches have few shapes: each is traced, compiled or tuned for once",
    "The number of shapes is told, with what to do",
    look,
)
