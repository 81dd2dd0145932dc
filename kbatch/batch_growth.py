"""The growth of the batch that a recipe names: how the batch size changes within a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbatch.errors import KbatchError
from kbatch.number_text import number, shortest

CONSTANT = "constant"
BY_PROGRESS = ("linear", "exponential", "steps")  # their sizes are known beforehand
KINDS = (*BY_PROGRESS, "plateau", "noise")
WORDS = f"{CONSTANT}, or one of {', '.join(KINDS)} with a factor, such as exponential:8"


@dataclass(frozen=True)
class BatchGrowth:
    """One value of the axis `batch_schedule`.

    A training begins with the batch size of the recipe divided by `factor`, but at least one
    example per pass, and grows to it.

    Attributes:
        kind: `"constant"`; `"linear"`, `"exponential"` or `"steps"` over the horizon; `"plateau"`,
            when the metric stops improving; or `"noise"`, by the measured gradient noise scale.
        factor: Float above 1, the last batch size over the first; 1 for a constant one.
    """

    kind: str = CONSTANT
    factor: float = 1.0

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a growth."""
        return self.kind if self.kind == CONSTANT else f"{self.kind}:{shortest(self.factor)}"

    @classmethod
    def parse(cls, text: object) -> BatchGrowth | None:
        """Read the growth from a text such as `"linear:8"`; `None` for any other text.

        Example:
        >>> BatchGrowth.parse("linear:8")
        BatchGrowth(kind='linear', factor=8.0)
        >>> BatchGrowth.parse("linear") is None
        True
        """
        if not isinstance(text, str):
            return None
        kind, colon, rest = text.partition(":")
        if kind == CONSTANT:
            return None if colon else cls()
        factor = number(rest)
        return None if kind not in KINDS or factor is None or factor <= 1 else cls(kind, factor)


def measures_noise(schedule: str) -> bool:
    """Tell whether a batch grows by the gradient noise scale, which is measured in passes.

    Example:
    >>> measures_noise("noise:8"), measures_noise("linear:8")
    (True, False)
    """
    return schedule.startswith("noise")


def check_companions(
    error: type[KbatchError],
    schedules: Sequence[str],
    compilations: Sequence[bool],
    methods: Sequence[str],
) -> None:
    """Refuse a growing batch together with what it cannot be trained with.

    Args:
        error: Class of the error to raise.
        schedules: The batch schedules of a recipe or a search.
        compilations: Whether XLA compiles its models.
        methods: Its training methods.

    Raises:
        KbatchError: Of that class, if a batch grows under XLA, or by a noise that is not measured.
    """
    growing = [schedule for schedule in schedules if schedule != CONSTANT]
    if growing and True in compilations:
        raise error(
            "Batch schedules must do without XLA, which compiles every batch size anew",
            f"batch_schedule={', '.join(growing)} and jit_compile=True",
            "Pass jit_compile=False, or constant batches",
        )
    by_noise = [schedule for schedule in growing if measures_noise(schedule)]
    other = [method for method in methods if method != "plain"]
    if by_noise and other:
        raise error(
            "A batch that grows by the noise scale must train plainly, where it is measured",
            f"batch_schedule={', '.join(by_noise)} and training={', '.join(other)}",
            'Pass training="plain", or another schedule',
        )
