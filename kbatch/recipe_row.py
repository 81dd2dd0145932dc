"""The row of a table of results, read as the fields of a recipe."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from kbatch.errors import RecipeError


def fields_of_row(
    row: Mapping[str, Any], known: set[str], required: Collection[str]
) -> dict[str, Any]:
    """Return the fields of a recipe from a row of results.

    In a row, pandas may have turned whole numbers into floats and `None` into NaN.

    Args:
        row: Mapping from column to value.
        known: Set of the names of a recipe's fields.
        required: Names of the columns that every row has.

    Raises:
        RecipeError: If a required column is missing.
    """
    missing = set(required) - set(row)
    if missing:
        raise RecipeError(
            "A row of results must have every column of a recipe",
            f"no {', '.join(sorted(missing))}",
            "Pass a whole row",
        )
    fields = {name: _plain(row[name]) for name in known & set(row)}
    if fields["optimizer"] == "compiled":
        fields |= {"learning_rate": None}  # the column holds the rate of the model's optimizer
    if fields["micro_batch_size"] == fields["batch_size"]:
        fields |= {"micro_batch_size": None}
    return fields


def _plain(value: Any) -> Any:
    """Return a plain Python value: no NumPy scalar, `None` for NaN, an int for a whole float."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return None
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain
