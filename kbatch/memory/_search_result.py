"""`SearchResult`: the largest batch size that probes and confirmations have shown."""

from __future__ import annotations

from dataclasses import dataclass

from kbatch.memory._probe import Probe


@dataclass(frozen=True)
class SearchResult:
    """The largest batch size that passed, and the probes that show it.

    Attributes:
        batch_size: Integer, the largest batch size that passed; 0 if none did.
        first_failing: Integer, the smallest that failed, or `None` if none did.
        probes: Tuple of `Probe` with the whole limit, in their order.
        confirmations: Tuple of `Probe`, the longer trainings with a part of the limit kept free.
    """

    batch_size: int
    first_failing: int | None
    probes: tuple[Probe, ...] = ()
    confirmations: tuple[Probe, ...] = ()

    @property
    def confirmed_steps(self) -> int:
        """Steps that the size was trained by its confirmations."""
        return sum(len(probe.step_seconds) for probe in self._passed(self.confirmations))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of the size in its confirmations; without one, in its probes."""
        passed = self._passed(self.confirmations) or self._passed(self.probes)
        return max((probe.peak_bytes for probe in passed), default=0)

    @property
    def first_peak_bytes(self) -> int:
        """Peak bytes of the first step of its confirmations on a GPU; else 0."""
        passed = self._passed(self.confirmations)
        return max((probe.first_peak_bytes for probe in passed), default=0)

    @property
    def why_failing(self) -> str:
        """The error at the smallest size that failed, if it does not name memory; else `""`."""
        errors = (
            each.message
            for each in (*self.probes, *self.confirmations)
            if each.batch_size == self.first_failing and each.ended == "suspect"
        )
        return next(errors, "")

    @property
    def last(self) -> Probe | None:
        """The last training of all, or `None` if there was none."""
        tried = (*self.probes, *self.confirmations)
        return tried[-1] if tried else None

    def _passed(self, probes: tuple[Probe, ...]) -> list[Probe]:
        return [each for each in probes if each.passed and each.batch_size == self.batch_size]
