"""Rows of a CSV file, appended as soon as they are known, so that Ctrl-C loses none."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def known(path: Path, names: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the values of some columns, a tuple for each row of a file."""
    found = set()
    for row in read(path):
        found.add(tuple(row[name] for name in names))
    return found


def tell(path: Path | None, columns: Sequence[str], row: Mapping[str, object]) -> None:
    """Append a row to a file; without one, print it."""
    if path is not None:
        append(path, columns, row)
    else:
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def append(path: Path, columns: Sequence[str], row: Mapping[str, object]) -> None:
    """Append a row, to a new file after a line of names, and print it."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(", ".join(f"{column} {value}" for column, value in row.items()), flush=True)
