"""Notebook: `%load_ext kbatch`, and `%%tune 5min` over a cell that calls `model.fit`."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kbatch.errors import SearchError
from kbatch.search.tuner_border import called_by_a_tuner
from kbatch.standin.configuration import noting
from kbatch.standin.fit_call import KERAS_FIT, FitCall, standing_in
from kbatch.standin.taken import Taken
from kbatch.standin.tuned import BUDGET, Tuned, Wishes, searched

FOLDER = "kbatch-tune"
_loaded = ExitStack()


def load_ipython_extension(shell: Any) -> None:
    """Load `%%tune`; a notebook calls this for `%load_ext kbatch`.

    Load it before the models are made: it notes the arguments of models that are subclasses, which
    Keras does not keep.

    Args:
        shell: The `InteractiveShell` of IPython.

    Example:
    ```python
    %load_ext kbatch
    %%tune 5min
    model.fit(x, y, validation_split=0.2, epochs=5)
    ```
    """
    _loaded.close()
    _loaded.enter_context(noting())
    shell.register_magic_function(CellTuner(shell).tune, "cell", "tune")


def unload_ipython_extension(shell: Any) -> None:
    """Note no arguments of models any more; a notebook calls this for `%unload_ext kbatch`.

    Args:
        shell: The `InteractiveShell` of IPython.
    """
    _loaded.close()


class CellTuner:
    """Runs a cell, whose first call of `fit` is searched and then trained by what won."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def tune(self, line: str, cell: str) -> Any:
        """Run a cell; the line gives the budget and, behind it, the folder of the search."""
        words = shlex.split(line)
        if len(words) > 2:
            raise SearchError(
                "%%tune must be given a budget, and a folder if need be", line, "Write %%tune 5min"
            )
        budget = words[0] if words else BUDGET
        folder = Path(words[1] if len(words) > 1 else FOLDER)
        found: list[Tuned] = []

        def take(call: FitCall) -> Any:
            if found or called_by_a_tuner():
                return KERAS_FIT(call.model, **call.arguments)
            taken = Taken.of(call)
            print(taken.told, flush=True)
            found.append(Tuned(searched(taken, Wishes(budget=budget), folder), folder))
            return found[0].history

        with standing_in(take):
            self._shell.run_cell(cell)
        if not found:
            raise SearchError("A cell must call model.fit to be tuned", "none", "Call it there")
        return found[0]
