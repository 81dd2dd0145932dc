"""Whether recipes that were the best on other tasks are a good beginning of a search.

Usage: python scripts/bench_portfolio.py [TABLE…] [--sizes 4,8] [--seeds 10] [--horizons 20]
[--only TASK,…] [--out FILE] [--show FILE] [--portfolio]

The tables are those of `scripts/record_table.py`: the same recipes in the same order on every task.
A TABLE of other recipes counts as pictures; it is judged, and nothing is learned from it.
A portfolio is learned as in auto-sklearn 2 (Feurer et al., 2022): recipe after recipe, the one that
lowers the mean regret of the best of the portfolio most. It is judged on tasks of another kind of
data alone: for each group of `scripts/table_tasks.py` it is learned from all other groups, and
kbatch's own search begins with it there, beside the same search without it. Random search
stands beside them.

A row holds the mean regret over the seeds after so many horizons, of one task. `--show` prints the
means over tasks, with the standard error of the difference from the search without a portfolio,
the tasks as the sample. `--portfolio` prints the portfolio of all tables.
"""

import argparse
import functools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_search
import numpy as np
import rows
import table_tasks

import kbatch
from kbatch.search import oracle
from kbatch.testing import Replay

TABLES = Path(__file__).parent / "results" / "tables"
SHOWN = (2, 5, 10, 20)
COLUMNS = ("table", "group", "start", "policy", "seeds", *(f"regret_{at}" for at in SHOWN))
POOR = 0.1  # a poor start is better than so many of a table's recipes


def every_table():
    """Return the files of the tables of tasks, and of the older ones."""
    return sorted(TABLES.glob("*.jsonl.gz")) + sorted(TABLES.parent.glob("replay_*.jsonl.gz"))


def name_of(path):
    """Return the task of a table's file."""
    return path.name.split(".")[0]


def group_of(path):
    """Return the group of a table; pictures for one that is no task of `table_tasks`."""
    name = name_of(path)
    return table_tasks.TASKS[name].group if name in table_tasks.TASKS else "pictures"


def kind(recipe):
    """Return what a table must have of a recipe for its search to draw it."""
    return recipe.optimizer, recipe.schedule


def learned(tables, size, judged):
    """Return the recipes of a portfolio, in the order in which they are tried.

    Those alone are taken that the search of the judged table may draw.
    """
    kinds = set(map(kind, judged.recipes))
    recipes = [each for each in tables[0].recipes if kind(each) in kinds]
    places = [tables[0].recipes.index(each) for each in recipes]
    regrets = np.array([[table.regret(table.recipes[at]) for at in places] for table in tables])
    held, chosen = np.ones(len(tables)), []
    for _ in range(size):
        means = np.minimum(held[:, None], regrets).mean(axis=0)
        chosen.append(recipes[int(np.argmin(means))])
        held = np.minimum(held, regrets[:, recipes.index(chosen[-1])])
    return chosen


def values(recipe):
    """Return the values of a recipe as a search draws them."""
    rate = {f"learning_rate_{recipe.optimizer}": kbatch.Space().rate_at_32(recipe)}
    return {name: getattr(recipe, name) for name in ("optimizer", "schedule", "batch_size")} | rate


def beginning(table, start, best):
    """kbatch's search from a start, told what was the best elsewhere."""

    def make(**arguments):
        made = oracle.Oracle(start, **arguments)
        made.begin_at(start, False, default=table.points.values(table.recipes[0]))
        made.learn(best)
        return made

    return make


def begun(table, name):
    """Return the values of the start of a name."""
    if name == "default":
        return table.points.values(table.recipes[0])
    in_order = sorted(table.recipes, key=table.mean)
    return table.points.values(in_order[int(POOR * len(in_order))])


def judged(path, tables, sizes, seeds, horizons):
    """Yield the rows of one task: without and with portfolios of the other groups."""
    table, group = tables[path], group_of(path)
    others = [
        each
        for other, each in tables.items()
        if group_of(other) != group and name_of(other) in table_tasks.TASKS
    ]
    policies = {("", "random"): "random"}
    for start in ("default", "poor"):
        first = begun(table, start)
        policies[start, "kbatch"] = beginning(table, first, [])
        for size in sizes:
            chosen = list(map(values, learned(others, size, table)))
            policies[start, f"kbatch+{size}"] = beginning(table, first, chosen)
    for (start, label), policy in policies.items():
        searches = [table.trials(policy, horizons, seed) for seed in range(seeds)]
        curves = [bench_search.regrets(table, each, horizons) for each in searches]
        means = np.mean(curves, axis=0)
        within = {f"regret_{at}": round(float(means[at - 1]), 4) for at in SHOWN if at <= horizons}
        yield {
            **{"table": name_of(path), "group": group, "start": start, "policy": label},
            **{"seeds": seeds, **within},
        }


def shown(file):
    """Return lines in Markdown: mean regrets over tasks, and how far they are from kbatch's."""
    found = {}
    for row in rows.read(file):
        regrets = [float(row[f"regret_{at}"]) for at in SHOWN]
        found.setdefault((row["start"], row["policy"]), {})[row["table"]] = regrets
    lines = [f"| start | search | {' | '.join(map(str, SHOWN))} |", "|---" * (2 + len(SHOWN)) + "|"]
    for (start, policy), of_table in found.items():
        own = found.get((start or "default", "kbatch"))
        regrets = np.array(list(of_table.values()))
        cells = [f"{mean:.3f}" for mean in regrets.mean(axis=0)]
        if policy != "kbatch":
            apart = regrets - np.array([own[name] for name in of_table])
            errors = apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
            far = zip(cells, apart.mean(axis=0), errors, strict=True)
            cells = [f"{cell} ({mean:+.3f} ± {error:.3f})" for cell, mean, error in far]
        lines.append(f"| {start or 'any'} | {policy} | {' | '.join(cells)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--only", help="judge on these tasks alone: names, separated by commas")
    parser.add_argument("--sizes", default="4,8")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--horizons", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--portfolio", action="store_true")
    options = parser.parse_args()
    if options.show:
        print(*shown(options.show), sep="\n")
        return
    paths = options.tables or every_table()
    tables = {path: Replay.load(path) for path in paths}
    sizes = [int(each) for each in options.sizes.split(",")]
    if options.portfolio:
        of_tasks = [each for path, each in tables.items() if name_of(path) in table_tasks.TASKS]
        for recipe in learned(of_tasks, max(sizes), of_tasks[0]):
            at = of_tasks[0].recipes.index(recipe)
            alone = np.mean([table.regret(table.recipes[at]) for table in of_tasks])
            print(f"{recipe}: mean regret {alone:.3f} alone")
        return
    tell = functools.partial(rows.tell, options.out, COLUMNS)
    wanted = options.only.split(",") if options.only else list(map(name_of, paths))
    for path in (each for each in paths if name_of(each) in wanted):
        for row in judged(path, tables, sizes, options.seeds, options.horizons):
            tell(row)


if __name__ == "__main__":
    main()
