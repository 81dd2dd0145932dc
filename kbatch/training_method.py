"""The training method that a recipe names: what one weight update does with a batch."""

from __future__ import annotations

from dataclasses import dataclass

from kbatch.number_text import number, shortest

PLAIN, SAM, PROXIMAL = "plain", "sam", "proximal"
INNER_STEPS = 3  # of the proximal method, if none are named; chosen by hand, not tuned
MOST_INNER_STEPS = 100
WORDS = f"{PLAIN}, {SAM}:0.05 (radius) or {PROXIMAL}:0.1 (penalty; {PROXIMAL}:0.1:5 for 5 steps)"


@dataclass(frozen=True)
class TrainingMethod:
    """One value of the axis `training`.

    Attributes:
        name: `"plain"`; `"sam"`, sharpness-aware minimisation (Foret et al. 2021); or `"proximal"`,
            the proximal mini-batch method (Li et al., KDD 2014).
        amount: Float above 0: the radius of SAM, or the penalty of the proximal method on the
            squared distance from where a batch began. 0 for plain training.
        inner_steps: Integer, optimizer steps on each batch; above 1 for the proximal method only.
    """

    name: str = PLAIN
    amount: float = 0.0
    inner_steps: int = 1

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a method."""
        words = [self.name]
        if self.name != PLAIN:
            words.append(shortest(self.amount))
        if self.inner_steps != _default_steps(self.name):
            words.append(str(self.inner_steps))
        return ":".join(words)

    @classmethod
    def parse(cls, text: object) -> TrainingMethod | None:
        """Read a method from a text such as `"sam:0.05"`; `None` for any other text.

        Example:
        >>> TrainingMethod.parse("sam:0.05")
        TrainingMethod(name='sam', amount=0.05, inner_steps=1)
        >>> TrainingMethod.parse("proximal:0.1").inner_steps
        3
        >>> TrainingMethod.parse("sam") is None
        True
        """
        if not isinstance(text, str):
            return None
        name, *numbers = text.split(":")
        if name == PLAIN:
            return None if numbers else cls()
        most_numbers = {SAM: 1, PROXIMAL: 2}.get(name, 0)
        if not 1 <= len(numbers) <= most_numbers:
            return None
        amount = _above_0(numbers[0])
        steps = _steps(numbers[1]) if len(numbers) > 1 else _default_steps(name)
        return None if amount is None or steps is None else cls(name, amount, steps)


def _default_steps(name: str) -> int:
    return INNER_STEPS if name == PROXIMAL else 1


def _above_0(text: str) -> float | None:
    amount = number(text)
    return amount if amount is not None and amount > 0 else None


def _steps(text: str) -> int | None:
    plain_digits = text.isascii() and text.isdecimal()
    return int(text) if plain_digits and 2 <= int(text[:9]) <= MOST_INNER_STEPS else None
