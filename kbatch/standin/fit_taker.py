"""Fit taker: of the calls of `fit` that a script makes, one is taken."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kbatch.errors import SearchError
from kbatch.search.tuner_border import called_by_a_tuner
from kbatch.standin.configuration import noting
from kbatch.standin.fit_call import KERAS_FIT, FitCall, standing_in
from kbatch.standin.search_call import TunerTaker
from kbatch.standin.users_script import UsersScript

LOOP = "GradientTape"
MODULES = ("re", "regex")  # whose `search` is no tuner's


class Ended(BaseException):
    """Ends a script behind the call of `fit` that was taken; no `except Exception` catches it."""


class FitTaker:
    """Takes one call of `fit` of a script, and lets the others train as they are.

    Args:
        script: `UsersScript`.
        number: Integer, which call is taken, counted from 1; `None` for the one with most epochs.
        take: Function that is given the `FitCall`, and returns what `fit` returns.
        tuners: `TunerTaker`, which takes the search of a tuner instead, where there is one; `None`
            to let the script's tuners search as they are.

    Attributes:
        taken: Boolean, whether a call was taken.
    """

    def __init__(
        self,
        script: UsersScript,
        number: int | None,
        take: Callable[[FitCall], Any],
        tuners: TunerTaker | None = None,
    ) -> None:
        self._tuners = tuners
        self._script, self._number, self._take = script, number, take
        self._file = script.file.resolve()  # a script may go to another folder
        self._count, self._waited_for, self._told = 0, 0, False
        self.taken = False

    def run(self) -> None:
        """Run the script.

        Raises:
            SearchError: If it ended without the call of `fit` that was to be taken.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(noting())
            stack.enter_context(standing_in(self._called))
            if self._tuners is not None:
                stack.enter_context(self._tuners.standing_in())
            self._script.run()
        searched = self._tuners is not None and self._tuners.searched
        if self.taken or searched:
            return
        if self._tuners is not None and self._tuners.stayed:
            print("Nothing was tuned: the script's tuner searched as it is, see above.", flush=True)
            return
        raise self._missing()

    def _called(self, call: FitCall) -> Any:
        if called_by_a_tuner():  # of the script, for a trial of its own
            return KERAS_FIT(call.model, **call.arguments)
        if self._tuners is not None and self._tuners.searched:
            return self._tuners.fit(call)
        self._count += 1
        if self.taken:
            self._tell_of_later(call)
        if self.taken or not self._is_the_one(call):
            return KERAS_FIT(call.model, **call.arguments)
        self.taken = True
        if self._tuners is not None:
            self._tuners.closed = True
        return self._take(call)

    def _is_the_one(self, call: FitCall) -> bool:
        if self._number is not None:
            return self._count == self._number
        others = [each for each in self._sites(call) if each.lineno > _line(call)]
        longer = [each for each in others if _epochs(each, call) > call.epochs]
        awaited = self._tuners is not None and not self._tuners.stayed
        if awaited and self._searches_later(call):
            print(
                f"fit of line {_line(call)} trains as it is: the search of a tuner is taken (--fit "
                "says otherwise).",
                flush=True,
            )
            return False
        if longer:
            self._waited_for = longer[0].lineno
            print(
                f"fit of line {_line(call)} trains as it is: that of line {longer[0].lineno} is "
                "longer, and is taken (--fit says otherwise).",
                flush=True,
            )
        return not longer

    def _tell_of_later(self, call: FitCall) -> None:
        """Say once that calls behind the taken one, such as those of other folds, are not tuned."""
        if not self._told:
            print(f"fit of line {_line(call)} trains as it is: one call is tuned.", flush=True)
        self._told = True

    def _searches_later(self, call: FitCall) -> bool:
        """Whether the file of a call of `fit` searches with a tuner of KerasTuner's too."""
        imported = any(
            "keras_tuner" in name or "kerastuner" in name for name in self._imports(call)
        )
        searches = [each for each in self._sites(call, "search") if _receiver(each) not in MODULES]
        return imported and bool(searches)

    def _imports(self, call: FitCall) -> Iterator[str]:
        """The modules that the file of a call imports."""
        for node in ast.walk(self._tree(call)):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            if isinstance(node, ast.ImportFrom):
                yield node.module or ""

    def _sites(self, call: FitCall, method: str = "fit") -> list[ast.Call]:
        """The calls of `fit`, or of `search`, in the file of a call."""
        found = [each for each in ast.walk(self._tree(call)) if isinstance(each, ast.Call)]
        return [each for each in found if getattr(each.func, "attr", "") == method]

    def _tree(self, call: FitCall) -> ast.Module:
        """The syntax of the file of a call; empty for what has none."""
        try:
            return ast.parse("" if call.place is None else Path(call.place[0]).read_text())
        except (OSError, SyntaxError, ValueError):
            return ast.parse("")

    def _missing(self) -> SearchError:
        loop = LOOP in self._file.read_text(errors="replace")
        if loop:
            return SearchError(
                "A script must call model.fit to be tuned",
                f"a training loop of its own ({LOOP})",
                "Override train_step and call fit, or use kbatch.Tuner with a build function",
            )
        if self._waited_for:
            return SearchError(
                "The call of fit with most epochs must be reached",
                f"a script that ended without that of line {self._waited_for}",
                "Pass --fit 1 for the first call",
            )
        which = "" if self._number is None else f" (--fit {self._number})"
        return SearchError(
            "A script must call model.fit to be tuned",
            f"a script that ended after {self._count} calls of fit, none of them taken{which}",
            "Pass its arguments behind its name, or another --fit",
        )


def _receiver(call: ast.Call) -> str:
    """What the method of a call is looked up in, as it is written."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _line(call: FitCall) -> int:
    return 0 if call.place is None else call.place[1]


def _epochs(site: ast.Call, call: FitCall) -> int:
    """The epochs of another call of `fit`, as far as its file tells; 0 if it does not."""
    given = {each.arg: each.value for each in site.keywords}
    last, first = (_number(given.get(name), call) for name in ("epochs", "initial_epoch"))
    return last - first


def _number(node: ast.expr | None, call: FitCall) -> int:
    """A whole number, or the sum, product or name of some."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and call.frame is not None:
        value = {**call.frame.f_globals, **call.frame.f_locals}.get(node.id)
        return value if isinstance(value, int) else 0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        left, right = _number(node.left, call), _number(node.right, call)
        if isinstance(node.op, ast.Mult):
            return left * right
        return left + right if isinstance(node.op, ast.Add) else left - right
    return 0
