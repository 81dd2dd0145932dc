"""What ten more horizons bring a search, by the horizons before: the law of kbatch.results.

Usage: python scripts/bench_prospects.py [TABLE…] [--seeds 10] [--horizons 30] [--out FILE]
or: python scripts/bench_prospects.py [TABLE…] --auto [--out FILE]
or: python scripts/bench_prospects.py --fit FILE

kbatch's own search is replayed on recorded tables, from the default recipe and from a poor one. A
row holds what one search of `--horizons` had after 1, 2, … horizons: the mean score of the recipe
that it recommends, as a share of the table's best.

`--fit` prints, over the searches of a FILE of rows, the mean rise of that score within ten
more horizons and the share of searches in which it rose, beside the law of
`kbatch.results.prospects`, and the constants that fit best: in squares, all moments alike.

With `--auto` a row holds where `budget="auto"` ends that search, in horizons, what the search had
then and after all `--horizons`, and what a confirmation tells apart. A search that goes on to the
end of its horizons loses nothing.
"""

import argparse
import itertools
import math
import os
import statistics
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_portfolio
import bench_search
import numpy as np
import pandas as pd
import rows
from scipy.optimize import curve_fit

from kbatch.results import prospects
from kbatch.results.interval import value_error
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


def ended_by_value(path, seeds, horizons):
    """Yield the rows of one table, where each search ends by what more of it is worth."""
    table = Replay.load(path)
    for start, seed in itertools.product(STARTS, range(seeds)):
        policy = bench_portfolio.beginning(table, bench_portfolio.begun(table, start), [])
        searched = table.trials(policy, horizons, seed)
        ended, apart = end_by_value(table, searched)
        best = max(map(table.mean, table.recipes))
        yield {
            "table": bench_portfolio.name_of(path),
            "start": start,
            "seed": seed,
            "ended_after": round(sum(each.seconds for each in searched[:ended]) / table.horizon, 2),
            "searched": round(sum(each.seconds for each in searched) / table.horizon, 2),
            "told_apart": round(apart, 4),
            "held_then": round(table.mean(searched[ended - 1].recommended) / best, 4),
            "held_at_the_end": round(table.mean(searched[-1].recommended) / best, 4),
        }


def end_by_value(table, searched):
    """Return after how many trainings `budget="auto"` ends a search, and what is told apart."""
    scores, spent, apart = {}, 0.0, math.nan
    for number, each in enumerate(searched, 1):
        spent += each.seconds / table.horizon
        training = next(
            (
                one
                for one in table.of[each.recipe]
                if table.gain(one, table.horizon) == each.gain
                and one.seconds(table.horizon) == each.seconds
            ),
            None,  # it was stopped before the horizon
        )
        if training is not None:
            scores.setdefault(each.recipe, []).append((table.held(training), training))
        repeated = [[held for held, _ in found] for found in scores.values() if len(found) > 1]
        best = scores.get(each.recommended)
        if not repeated or not best:
            continue
        spread = math.sqrt(statistics.fmean(statistics.variance(one) for one in repeated))
        held = statistics.fmean(one for one, _ in best)
        if held <= 0:
            continue
        apart = prospects.told_apart(held, spread, error_of(held + best[0][1].chance, best[0][1]))
        if not prospects.Prospects(spent, apart).is_worth_it:
            return number, apart
    return len(searched), apart


def error_of(value, training):
    """The standard error of measuring a value; 0 if it is no share of examples."""
    if not training.validation_examples:
        return 0.0
    return value_error(value, "accuracy", training.validation_examples) or 0.0


def summary(found):
    """The mean over tables of each column, and its standard error."""
    table = pd.DataFrame(found).assign(
        early=lambda each: each["ended_after"] < each["searched"],
        lost=lambda each: 1 - each["held_then"] / each["held_at_the_end"],
    )
    of_tables = table.drop(columns="seed").groupby(["start", "table"]).mean()
    return of_tables.groupby("start").agg(["mean", "sem"]).T.round(4).to_string()


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
    parser.add_argument("--auto", action="store_true")
    options = parser.parse_args()
    if options.fit:
        print(*fitted(options.fit), sep="\n")
        return
    if options.auto:
        found = []
        for path in options.tables or bench_portfolio.every_table():
            for row in ended_by_value(path, options.seeds, options.horizons):
                rows.tell(options.out, tuple(row), row)
                found.append(row)
        print(summary(found))
        return
    columns = ("table", "start", "seed", *(f"held_{at}" for at in range(1, options.horizons + 1)))
    for path in options.tables or bench_portfolio.every_table():
        for row in recorded(path, options.seeds, options.horizons):
            rows.tell(options.out, columns, row)


if __name__ == "__main__":
    main()
