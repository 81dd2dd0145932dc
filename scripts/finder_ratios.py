"""The summary of the benchmark of finders: probes, out-of-memory errors and time, as ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Row = Mapping[str, str]
PEERS = ("bisect", "shrink")


def summary(found: Sequence[Row], steps: int) -> None:
    """Print kbatch's finder on its own, against its peers, and its predictions with XLA.

    Args:
        found: Rows of the benchmark's file.
        steps: Integer, the steps that a peer's answer was trained for.
    """
    plain = [row for row in found if row["jit_compile"] == "False"]
    by_key = {(row["model"], row["optimizer"], row["finder"]): row for row in plain}
    ours = {key[:2]: row for key, row in by_key.items() if key[2] == "jump"}
    _print_counts("all but the CNN", [row for row in ours.values() if row["model"] != "cnn"])
    _print_counts("the CNN", [row for row in ours.values() if row["model"] == "cnn"])
    for finder in PEERS:
        pairs = [
            (row, by_key[(*key, finder)]) for key, row in ours.items() if (*key, finder) in by_key
        ]
        _print_shares(finder, pairs)
    for finder in PEERS:
        answers = [row["survives_50_steps"] for row in plain if row["finder"] == finder]
        survived = sum(answer == "True" for answer in answers)
        print(f"{finder}: {survived} of {len(answers)} answers survive {steps} steps")
    for row in found:
        if row["jit_compile"] == "True":
            true = row["largest_that_survives"][1:]
            name = f"{row['model']} {row['optimizer']}"
            print(f"jit {name}: predicted {row['predicted']}, true {true}")


def _print_counts(label: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    words = []
    for title, column in (("probes", "probes"), ("OOMs", "ooms")):
        counts = [int(row[column]) for row in rows]
        words.append(f"{title} median {statistics.median(counts):g} (most {max(counts)})")
    print(f"{label}: {', '.join(words)}")


def _print_shares(finder: str, pairs: Sequence[tuple[Row, Row]]) -> None:
    """Print what kbatch's finder takes as a share of a peer's."""
    if not pairs:
        return
    for column in ("examples", "wall_seconds", "total_wall_seconds"):
        # A peer confirms nothing, so its wall-clock time is the total.
        peers = column.replace("total_", "")
        shares = [float(row[column]) / float(peer[peers]) for row, peer in pairs]
        middle = f"median {statistics.median(shares):.2f}x"
        print(f"{column} against {finder}: {middle}, from {min(shares):.2f}x to {max(shares):.2f}x")
