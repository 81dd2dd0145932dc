"""Probing: what a search asks of a prober, which tries batch sizes for it."""

from __future__ import annotations

from typing import Protocol

from kbatch.memory._probe import ModelFacts, Probe
from kbatch.memory._workload import Workload
from kbatch.runtime.size import Moment


class Probing(Protocol):
    """What a search asks of `Prober`."""

    workload: Workload
    limit_bytes: int | None

    def facts(self) -> ModelFacts:
        """See `Prober.facts`."""

    def prepare(self) -> None:
        """See `Prober.prepare`."""

    def probe(self, batch_size: int) -> Probe:
        """See `Prober.probe`."""

    def steps(self, batch_size: int, steps: int) -> Probe:
        """See `Prober.steps`."""

    def train(self, batch_size: int, steps: int, validation_batch_size: int | None = None) -> Probe:
        """See `Prober.train`."""

    def confirm(
        self, batch_size: int, steps: int, validation_batch_size: int | None = None
    ) -> Probe:
        """See `Prober.confirm`."""

    def moments(self) -> list[Moment]:
        """See `Prober.moments`."""

    def most_elements(self) -> float:
        """See `Prober.most_elements`."""

    def compiled_bytes(self, batch_size: int) -> int:
        """See `Prober.compiled_bytes`."""
