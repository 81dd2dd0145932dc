"""Traces: bytes of a train step from its graph, or from XLA's buffers, without running it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import keras
import tensorflow as tf

from kbatch.memory import _worker
from kbatch.memory._probe import Refusal
from kbatch.memory._xla import DUMP, TOO_LARGE
from kbatch.runtime.oom import is_out_of_memory
from kbatch.tracing import liveness
from kbatch.tracing.digest import digest as digest_of
from kbatch.tracing.liveness import PRIME
from kbatch.tracing.size import Moment
from kbatch.tracing.specialize import reshaped

TOTAL = re.compile(r"Total bytes used: (\d+)")


def moments() -> list[Moment] | Refusal:
    """The moments of the train step that may be its peak; nothing is executed."""
    try:
        now = _worker.current()
        graph = reshaped(now.step.get_concrete_function(), PRIME)
        if graph is None:
            graph = (
                tf.function(now.model.train_step)
                .get_concrete_function(_worker.specs(now.sample, PRIME))
                .graph
            )
        return liveness.moments(graph)
    except Exception as error:
        return _worker.refusal(error)


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
        # XLA asks for values, not shapes; they must not take the device's memory
        with tf.device("CPU:0"):
            batch = keras.tree.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype), _worker.specs(now.sample, batch_size)
            )
        now.step.experimental_get_compiler_ir(batch)(stage="optimized_hlo_serialized")
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
