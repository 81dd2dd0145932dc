"""Whether recipes that were the best on other tasks are a good beginning of a search.

Usage: python scripts/bench_portfolio.py [TABLE…] [--sizes 4,8] [--seeds 10] [--horizons 20]
[--only TASK,…] [--out FILE] [--show FILE] [--portfolio]
or: python scripts/bench_portfolio.py --fresh FOLDER [--sizes 4] [--seeds 10] [--out FILE]

The tables are those of `scripts/record_table.py`: the same recipes in the same order on every task.
A TABLE of other recipes counts as pictures; it is judged, and nothing is learned from it.
A portfolio is learned as in auto-sklearn 2 (Feurer et al., 2022): recipe after recipe, the one that
lowers the mean regret of the best of the portfolio most. It is judged on tasks of another kind of
data alone: for each group of `scripts/table_tasks.py` it is learned from all other groups, and
kbatch's own search begins with it there, beside the same search without it. Random search
stands beside them.

A row holds the mean regret over the seeds after so many horizons, of one task. `--show` prints the
means over tasks, with the standard error of the difference from the search without a portfolio,
the tasks as the sample. `--portfolio` prints the portfolio of all tables but those of
pictures, and what tasks would lose without a recipe.

`--fresh` judges on the tables of `scripts/fresh_tasks.py` in FOLDER, which had no part in anything
before. What is learned there is learned from the older tables that are no pictures: from all of
them, and from those of other groups. `--default-space` cuts all tables to SGD and Adam at constant
rates, which kbatch's default space draws. Decided before a fresh table was recorded: a portfolio
of four ships, for data that are no pictures, if both lower the mean regret after 5 horizons by a
third, from the default and from a poor start; for the default space, if they do in the cut tables.
"""

import argparse
import itertools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_search
import fresh_tasks
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


def judged(name, table, sources, sizes, seeds, horizons):
    """Yield the rows of one task: without portfolios, and with those of each source's tables."""
    policies = {("", "random"): "random"}
    for start in ("default", "poor"):
        first = begun(table, start)
        policies[start, "kbatch"] = beginning(table, first, [])
        for size in sizes:
            for label, others in sources.items():
                chosen = list(map(values, learned(others, size, table)))
                policies[start, f"kbatch+{size}{label}"] = beginning(table, first, chosen)
    for (start, label), policy in policies.items():
        searches = [table.trials(policy, horizons, seed) for seed in range(seeds)]
        curves = [bench_search.regrets(table, each, horizons) for each in searches]
        means = np.mean(curves, axis=0)
        within = {f"regret_{at}": round(float(means[at - 1]), 4) for at in SHOWN if at <= horizons}
        yield {**name, "start": start, "policy": label, "seeds": seeds, **within}


def of_groups_left_out(options):
    """Yield the rows of all tasks, with portfolios of the other groups of data."""
    paths = options.tables or every_table()
    tables = {path: load(path, options) for path in paths}
    wanted = options.only.split(",") if options.only else list(map(name_of, paths))
    for path in (each for each in paths if name_of(each) in wanted):
        group = group_of(path)
        others = [
            each
            for other, each in tables.items()
            if group_of(other) != group and name_of(other) in table_tasks.TASKS
        ]
        name = {"table": name_of(path), "group": group}
        yield from judged(
            name, tables[path], {"": others}, options.sizes, options.seeds, options.horizons
        )


def load(path, options):
    """Return a table, cut to the recipes of kbatch's default space if asked for."""
    table = Replay.load(path)
    if not options.default_space:
        return table
    drawn = kbatch.Space()
    kept = set(itertools.product(drawn.optimizer, drawn.schedule))
    return Replay([each for each in table.trainings if kind(each.recipe) in kept])


def without_pictures(options):
    """Return the tables of `table_tasks` that are no pictures, each with its group."""
    paths = [each for each in sorted(TABLES.glob("*.jsonl.gz")) if group_of(each) != "pictures"]
    return [(group_of(each), load(each, options)) for each in paths]


def of_fresh_tables(options):
    """Yield the rows of the fresh tasks, with portfolios of the older tables."""
    older = without_pictures(options)
    for path in sorted(options.fresh.glob("*.jsonl.gz")):
        group = fresh_tasks.TASKS[name_of(path)].group
        sources = {
            "": [table for _, table in older],
            ", other groups": [table for kind, table in older if kind != group],
        }
        name = {"table": name_of(path), "group": group}
        yield from judged(
            name, load(path, options), sources, options.sizes, options.seeds, options.horizons
        )


def earned(options):
    """Return a line for each recipe of the portfolio: what tasks lose with and without it."""
    names = [name_of(each) for each in sorted(TABLES.glob("*.jsonl.gz"))]
    names = [name for name in names if table_tasks.TASKS[name].group != "pictures"]
    tables = [table for _, table in without_pictures(options)]
    held, lines = None, []
    for recipe in learned(tables, max(options.sizes), tables[0]):
        at = tables[0].recipes.index(recipe)
        own = np.array([table.regret(table.recipes[at]) for table in tables])
        lines.append(f"{values(recipe)}: mean regret {own.mean():.3f} alone")
        if held is not None:
            lost = {name: gone for name, gone in zip(names, held - own, strict=True) if gone > 0.01}
            lines[-1] += "; without it lost: " + ", ".join(
                f"{name} {held[names.index(name)]:.2f} in place of {own[names.index(name)]:.2f}"
                for name in lost
            )
        held = own if held is None else np.minimum(held, own)
    return lines


def shown(file, without):
    """Return lines in Markdown: mean regrets over tasks, and how far they are from kbatch's."""
    found = {}
    for row in (each for each in rows.read(file) if each["table"] not in without):
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


def sizes(words):
    """Return the sizes of portfolios, given as words separated by commas."""
    return [int(each) for each in words.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--only", help="judge on these tasks alone: names, separated by commas")
    parser.add_argument("--fresh", type=Path, help="folder of the tables of fresh tasks")
    parser.add_argument("--default-space", action="store_true")
    parser.add_argument("--sizes", type=sizes, default="4,8")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--horizons", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--without", default="", help="leave these tasks out of what is shown")
    parser.add_argument("--portfolio", action="store_true")
    options = parser.parse_args()
    if options.show:
        print(*shown(options.show, options.without.split(",")), sep="\n")
        return
    if options.portfolio:
        print(*earned(options), sep="\n")
        return
    found = of_fresh_tables(options) if options.fresh else of_groups_left_out(options)
    for row in found:
        rows.tell(options.out, COLUMNS, row)


if __name__ == "__main__":
    main()
