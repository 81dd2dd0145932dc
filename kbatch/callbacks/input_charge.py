"""Input charge: what an update costs at least whose input was made while the clock stood still."""

from __future__ import annotations

# updates; pipelines were seen to hold about ten batches ready after a pause, and these are more
MOST_READY = 64
STEADY = 16  # updates without a pause that show what the pipeline really takes


class InputCharge:
    """Charges input that a pipeline made during a pause, which would otherwise come for nothing.

    A pipeline fills its buffers while validation or a callback runs. The updates after a pause, as
    many as the pipeline can have made ready in it, cost at least what the pipeline alone takes.

    Args:
        input_seconds: Float, seconds that the input pipeline alone takes for an update; `0` charges
            nothing.
    """

    def __init__(self, input_seconds: float = 0.0) -> None:
        self._input_seconds = input_seconds
        self._ready = 0.0
        self._steady: list[float] = []

    def paused(self, seconds: float) -> None:
        """Note that the clock stood still for so many seconds."""
        if self._input_seconds > 0:
            self._ready = min(self._ready + seconds / self._input_seconds, MOST_READY)

    def of(self, update_seconds: float) -> float:
        """The seconds to charge for an update that took so many."""
        if self._ready >= 1:
            self._ready -= 1
            self._steady.clear()
            return max(update_seconds, self._input_seconds)
        if self._input_seconds > 0:
            self._learn(update_seconds)
        return update_seconds

    def _learn(self, update_seconds: float) -> None:
        """Lower the pipeline's seconds if many updates in a row, with nothing made ready, took less."""
        self._steady.append(update_seconds)
        if len(self._steady) == STEADY:
            self._input_seconds = min(self._input_seconds, sum(self._steady) / STEADY)
            self._steady.clear()
