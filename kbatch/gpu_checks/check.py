"""Check, its result, and the row that is written of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_REHEARSED = "cannot be rehearsed"
JSON_NAME = "pass"  # of `passed`, which Python keeps for itself


@dataclass(frozen=True)
class Result:
    """What a check found.

    Attributes:
        passed: Boolean, whether the criterion is met; `None` if nothing can be said.
        measured: Mapping from names to the numbers and words that were measured.
        text: String, an explanation for people.
    """

    passed: bool | None
    measured: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def unless_rehearsed(self, rehearsed: bool, why: str) -> Result:
        """Return this result; of a rehearsal that passed, that it says nothing of a real GPU."""
        if not rehearsed or not self.passed:
            return self
        return dataclasses.replace(self, passed=None, text=f"{NOT_REHEARSED}: {why}. {self.text}")


@dataclass(frozen=True)
class Check:
    """One question to a GPU, with the criterion by which its answer passes.

    Attributes:
        name: String, such as `"L1"`, or `"O1.matmul"` for one of several.
        criterion: String, what must hold.
        function: String, `"package.module:function"`, called with the `Scale` and the arguments.
        arguments: Tuple of strings, further arguments of the function.
        seconds_limit: Float, seconds after which the process is killed and the check has failed.
        expected_seconds: Float, seconds that must be left of a budget for it to begin.
        quick: Boolean, whether `kbatch doctor --gpu` runs it.
        shares: Boolean, whether it keeps to a memory limit and is not timed, so that others may run
            beside it.
        unrehearsed: String, why the fake GPU cannot run it; empty if it can.
    """

    name: str
    criterion: str
    function: str
    arguments: tuple[str, ...] = ()
    seconds_limit: float = 300.0
    expected_seconds: float = 15.0
    quick: bool = False
    shares: bool = False
    unrehearsed: str = ""

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.name[0]

    def is_meant_by(self, name: str) -> bool:
        """Tell whether a name means this check: its own, or that of the several it is one of.

        Example:
        >>> check = Check("O1.matmul", "certain", "module:function")
        >>> check.is_meant_by("O1"), check.is_meant_by("O1.matmul"), check.is_meant_by("O")
        (True, True, False)
        """
        return self.name == name or self.name.startswith(f"{name}.")


@dataclass(frozen=True)
class Row:
    """A check with its result.

    Attributes:
        check: String, name of the check.
        passed: See `Result`.
        criterion: See `Check`.
        measured: See `Result`.
        seconds: Float, wall-clock seconds, the start of the process included.
        text: See `Result`.
    """

    check: str
    passed: bool | None
    criterion: str
    measured: Mapping[str, Any]
    seconds: float
    text: str

    @classmethod
    def of(cls, check: Check, result: Result, seconds: float) -> Row:
        """Return the row of a check and its result."""
        measured, rounded = result.measured, round(seconds, 2)
        return cls(check.name, result.passed, check.criterion, measured, rounded, result.text)

    @property
    def word(self) -> str:
        """The result in a word."""
        return {True: "pass", False: "FAIL", None: "-"}[self.passed]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict that JSON can hold."""
        fields = dataclasses.asdict(self)
        names = {name: JSON_NAME if name == "passed" else name for name in fields}
        return {names[name]: value for name, value in fields.items()}
