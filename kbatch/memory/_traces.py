"""Traces: bytes of a train step from its graph, or from XLA's buffers, without running it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kbatch.memory import _worker
from kbatch.memory._probe import Refusal
from kbatch.memory._xla import DUMP, TOO_LARGE
from kbatch.runtime import liveness
from kbatch.runtime.oom import is_out_of_memory
from kbatch.runtime.size import Moment
from kbatch.runtime.trace import PRIME, digest_of, reshaped

TOTAL = re.compile(r"Total bytes used: (\d+)")


def moments() -> list[Moment] | Refusal:
    """The moments of the train step that may be its peak; nothing is executed."""
    try:
        return liveness.moments(_graph(_worker.current()))
    except Exception as error:
        return _worker.refusal(error)


def most_elements() -> float | Refusal:
    """The elements of the train step's largest tensor for each example of the batch."""
    try:
        return liveness.most_elements(_graph(_worker.current()))
    except Exception as error:
        return _worker.refusal(error)


def _graph(now: _worker.Session) -> Any:
    """The graph of a train step with a batch of `PRIME` examples."""
    graph = reshaped(now.step.get_concrete_function(), PRIME)
    if graph is not None:
        return graph
    step = tf.function(now.model.train_step)
    return step.get_concrete_function(now.specs(PRIME)).graph


def digest() -> str | Refusal:
    """A digest of the model: of its variables, and of its train step traced for any batch size."""
    try:
        now = _worker.current()
        variables = [
            (list(each.shape), str(each.dtype), each.trainable)
            for each in (*now.model.variables, *now.model.optimizer.variables)
        ]
        return f"{variables} {digest_of(now.step.get_concrete_function().graph)}"
    except Exception as error:
        return _worker.refusal(error)


def compiled_bytes(batch_size: int) -> int | Refusal:
    """Bytes of all buffers of the train step as XLA compiles it; nothing is executed."""
    folder = Path(os.environ[DUMP])
    try:
        now = _worker.current()
        specs = now.specs(batch_size)

        # XLA compiles from shapes alone where every argument is one tensor: a whole batch of zeros
        # may not fit into the memory of the host. The name is what `_xla.flags` looks for.
        @tf.function(jit_compile=True)
        def train_step(*parts: tf.Tensor) -> Any:
            return now.step(keras.tree.pack_sequence_as(specs, parts))

        text = train_step.experimental_get_compiler_ir(*keras.tree.flatten(specs))
        text(stage="optimized_hlo_serialized")
        texts = [
            path.read_text()
            for path in sorted(folder.glob("*buffer-assignment.txt"), key=os.path.getmtime)
        ]
        totals = [int(found) for text in texts for found in TOTAL.findall(text)]
        return totals[-1]
    except Exception as error:
        return TOO_LARGE if is_out_of_memory(error) else _worker.refusal(error)
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
