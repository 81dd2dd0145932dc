"""A prober whose workload needs a known number of bytes: no process, no TensorFlow."""

from __future__ import annotations

from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import ModelFacts
from kbatch.memory._search import Need
from kbatch.runtime.trace import ALLOCATOR_SLACK, Moment, Size
from kbatch.space import Combination

LIMIT = 1000 << 20


class FakeProber:
    """Passes what fits into the bytes it has, and keeps a log of what it was asked.

    Args:
        workload: `Workload`; only its recipe is looked at.
        needs: Function from a recipe to the `Need` of its step.
        predicted: Function from a recipe to the `Need` that its trace predicts.
        log: List that every training is appended to, as (what, batch size).
    """

    device, elements, uncounted, seconds = "CPU", 0.0, True, 10.0

    def __init__(self, workload, needs, predicted, log, usable_bytes, limit_bytes=LIMIT):
        self.workload, self.limit_bytes = workload, limit_bytes
        self._needs, self._predicted, self._log = needs, predicted, log
        self._usable_bytes = usable_bytes

    def facts(self):
        static = int(self._predicted(self.workload.recipe).at(0))
        contiguous = self._usable_bytes - static
        return ModelFacts(self.limit_bytes, self.device, static, 0, static // 2, contiguous)

    def another(self, workload):
        self.workload = workload

    def prepare(self):
        pass

    def close(self):
        pass

    def probe(self, batch_size):
        return self._try("probe", batch_size, 3, self.limit_bytes)

    def steps(self, batch_size, steps):
        return self._try("steps", batch_size, steps, self.limit_bytes)

    def train(self, batch_size, steps, validation_batch_size=None):
        return self._try("train", batch_size, steps, self.limit_bytes)

    def confirm(self, batch_size, steps, validation_batch_size=None):
        return self._try("confirm", batch_size, steps, self._usable_bytes)

    def confirm_at_once(self, batch_size, steps, validation_batch_size=None):
        return self._try("confirm_at_once", batch_size, steps, self._usable_bytes)

    def misses_some(self):
        return self.uncounted

    def moments(self):
        curve = self._predicted(self.workload.recipe)
        static = int(curve.at(0))
        return [
            Moment(
                Size(),
                Size((fixed - static) / ALLOCATOR_SLACK, slope / ALLOCATOR_SLACK),
                Size(),
            )
            for fixed, slope in curve.lines
        ]

    def most_elements(self):
        return self.elements

    def compiled_bytes(self, batch_size):
        return int(self._needs(self.workload.recipe).at(batch_size))

    def _try(self, what, batch_size, steps, limit_bytes):
        self._log.append((what, batch_size))
        need = self._needs(self.workload.recipe).at(batch_size)
        if need > limit_bytes:
            return Probe(batch_size, "out_of_memory", 0, 1.0)
        # The larger the batch, the longer a step, so that no speed bound hides the memory.
        seconds = (self.seconds + batch_size * self.seconds / 10,) * steps
        return Probe(batch_size, "passed", int(need), 1.0, seconds)


def plain(optimizer="sgd", policy="float32", jit_compile=False):
    return Combination(policy, optimizer, jit_compile)


def line(fixed, slope):
    return Need(((float(fixed), float(slope)),))
