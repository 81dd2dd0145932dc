"""What ten more horizons bring a search, by the horizons before: the law of kbatch.results.

Usage: python scripts/bench_prospects.py [TABLE…] [--seeds 10] [--horizons 30] [--out FILE]
or: python scripts/bench_prospects.py --fit FILE

kbatch's own search is replayed on recorded tables, from the default recipe and from a poor one. A
row holds what one search of `--horizons` had after 1, 2, … horizons: the mean score of the recipe
that it recommends, as a share of the table's best.

`--fit` prints, over the searches of a FILE of rows, the mean rise of that score within ten
more horizons and the share of searches in which it rose, beside the law of
`kbatch.results.prospects`, and the constants that fit best: in squares, all moments alike.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_portfolio
import bench_search
import numpy as np
import rows
from scipy.optimize import curve_fit

from kbatch.results import prospects
from kbatch.testing import Replay

STARTS = ("default", "poor")


def recorded(path, seeds, horizons):
    """Yield the rows of one table."""
    table = Replay.load(path)
    for start in STARTS:
        begun = bench_portfolio.begun(table, start)
        for seed in range(seeds):
            policy = bench_portfolio.beginning(table, begun, [])
            searched = table.trials(policy, horizons, seed)
            held = 1 - np.array(bench_search.regrets(table, searched, horizons))
            shares = {f"held_{at}": round(float(value), 4) for at, value in enumerate(held, 1)}
            yield {"table": bench_portfolio.name_of(path), "start": start, "seed": seed, **shares}


def falling(horizons, first, offset):
    """The law: so much at first, and ever less."""
    return first / (horizons + offset)


def fitted(file):
    """Return lines on the rises in a file of rows, and on the laws that fit them."""
    found = rows.read(file)
    longest = max(int(name[5:]) for name in found[0] if name.startswith("held_"))
    held = np.array([[float(row[f"held_{at}"]) for at in range(1, longest + 1)] for row in found])
    moments = np.arange(1, longest + 1 - prospects.MORE)
    before, after = held[:, moments - 1], held[:, moments - 1 + prospects.MORE]
    rises = np.where(before > 0, after / np.maximum(before, 1e-9) - 1, 0.0)
    kinds = {
        "gain": (rises, prospects.GAIN, prospects.GAIN_FROM),
        "chance": (rises > 0, prospects.CHANCE, prospects.CHANCE_FROM),
    }
    names = np.array([row["table"] for row in found])
    lines = []
    for kind, (values, first, offset) in kinds.items():
        of_table = np.array([values[names == name].mean(axis=0) for name in np.unique(names)])
        mean = of_table.mean(axis=0)
        error = of_table.std(axis=0, ddof=1) / np.sqrt(len(of_table))
        from_4 = moments >= 4  # none is announced before the first whole trials
        best, _ = curve_fit(falling, moments[from_4], mean[from_4], p0=(first, offset))
        lines.append(f"{kind}: best law {best[0]:.3g} / (horizons + {best[1]:.3g})")
        for at in (2, 4, 6, 8, 10, 15, 20):
            if at in moments:
                place = at - 1
                lines.append(
                    f"{kind} after {at}: {mean[place]:.4f} ± {error[place]:.4f}, "
                    f"law {falling(at, first, offset):.4f}"
                )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--horizons", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", type=Path)
    options = parser.parse_args()
    if options.fit:
        print(*fitted(options.fit), sep="\n")
        return
    columns = ("table", "start", "seed", *(f"held_{at}" for at in range(1, options.horizons + 1)))
    for path in options.tables or bench_portfolio.every_table():
        for row in recorded(path, options.seeds, options.horizons):
            rows.tell(options.out, columns, row)


if __name__ == "__main__":
    main()
