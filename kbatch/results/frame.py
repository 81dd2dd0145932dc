"""A pandas table of trainings that prints its most important columns."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

LAST = "ended"  # the columns up to this one are shown, and the user's own hyperparameters
OWN = "hp_"


class Trials(pd.DataFrame):
    """A `pandas.DataFrame` of trainings, one row each.

    `print` and a notebook show the first columns (trial, recipe, score, value, seconds, ending) and
    the user's own hyperparameters. All other columns are there too. A selection of columns is shown
    as it was selected.
    """

    @property
    def _constructor(self) -> Callable[..., Trials]:
        return Trials

    def __repr__(self) -> str:
        with _wide():
            return repr(self._shown()) + self._note()

    def _repr_html_(self) -> str:
        with _wide():
            return (
                self._shown().to_html(notebook=True, max_rows=pd.get_option("display.max_rows"))
                + f"<p>{self._note().strip()}</p>"
            )

    def _shown(self) -> pd.DataFrame:
        """The columns to show, as a plain table."""
        plain = pd.DataFrame(self)
        if not self._shortened():
            return plain
        own = [name for name in self.columns if str(name).startswith(OWN)]
        return plain[[*self._first(), *own]]

    def _first(self) -> list[str]:
        names = list(self.columns)
        return names[: names.index(LAST) + 1]

    def _shortened(self) -> bool:
        """Whether this is the whole table, and not a selection or a summary of it."""
        names = list(self.columns)
        return (
            names[:3] == ["trial", "recipe", "score"]
            and LAST in names
            and len(names) > names.index(LAST) + 1
        )

    def _note(self) -> str:
        if not self._shortened():
            return ""
        columns = f"{len(self.columns)} columns in all (see .columns)"
        return f"\n{columns}; trial -1 is the baseline, score is per second"


def _wide() -> pd.option_context:
    return pd.option_context(
        "display.width", 200, "display.max_columns", None, "display.max_colwidth", 80
    )
