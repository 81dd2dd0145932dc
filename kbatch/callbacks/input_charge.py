"""The input charge: seconds for batches that were prepared while the clock was paused."""

from __future__ import annotations

# Updates. After a pause, pipelines were seen to hold about ten batches ready (AUTOTUNE of tf.data,
# on 2 cores); 64 is chosen well above that, not tuned.
MOST_READY = 64
STEADY = 16  # updates in a row that show the seconds of the pipeline; chosen by hand, not tuned


class InputCharge:
    """A charge for input that the pipeline prepared during a pause, and that would cost nothing.

    A pipeline fills its buffers while validation or a callback runs. For as many updates as the
    pipeline can have prepared during the pause, at least the seconds of the pipeline are charged.

    Args:
        input_seconds: Float, seconds of the input pipeline by itself for one update; `0` (the
            default) charges nothing.
    """

    def __init__(self, input_seconds: float = 0.0) -> None:
        self._input_seconds = input_seconds
        self._ready = 0.0
        self._steady: list[float] = []

    def paused(self, seconds: float) -> None:
        """Note a pause of so many seconds."""
        if self._input_seconds > 0:
            self._ready = min(self._ready + seconds / self._input_seconds, MOST_READY)

    def of(self, update_seconds: float) -> float:
        """Return the seconds to charge for an update that took so many."""
        if self._ready >= 1:
            self._ready -= 1
            self._steady.clear()
            return max(update_seconds, self._input_seconds)
        if self._input_seconds > 0:
            self._learn(update_seconds)
        return update_seconds

    def _learn(self, update_seconds: float) -> None:
        """Lower the seconds of the pipeline if many updates without a pause took less."""
        self._steady.append(update_seconds)
        if len(self._steady) == STEADY:
            self._input_seconds = min(self._input_seconds, sum(self._steady) / STEADY)
            self._steady.clear()
