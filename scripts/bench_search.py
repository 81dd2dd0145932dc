"""Ways of search compared on recorded trainings: the regret after some horizons of training.

Usage: python scripts/bench_search.py TABLE… [--policies random,bayesian,kbatch] [--seeds 100]
[--horizons 40] [--noise 1,0.25] [--out FILE] [--early]
or: python scripts/bench_search.py TABLE… --own-time, or --show FILE

A table holds the trainings of many recipes with several seeds (see `kbatch.testing.Replay`). Each
policy searches it once a seed; its trials are answered with recorded trainings, which takes
milliseconds. The regret is the share of the best mean score that the recommended recipe loses.
`kbatch:kept=2+random=5` is kbatch's own search with other settings: one of two trials goes on
at the rung, and five random ones come first; `kbatch:gp=10` proposes by a Gaussian process once
ten recipes have reached the horizon. `kbatch@poor` and `kbatch@good` begin at a recipe
that is better than a tenth, or nine tenths, of the table's. `--noise 0.25` moves each training to a
quarter of its distance from the mean of its recipe.

`--early` searches nothing: it tells for each table how far the best recipe is ahead, the standard
error of a good recipe's mean score, and for each seed the rank correlation, over the recipes, of
what a trial holds after a ninth and a third of the horizon with the mean score at its end.
`--own-time` tells how long kbatch's own search takes to propose a trial. `--show` prints the tables
of docs/benchmarks.md from a FILE of rows.

A row holds the median and the mean regret over the seeds after so many horizons of training
seconds. A table of few recipes has steps, and medians jump from one to the next. It holds the
first numbers of horizons after which the median is at most that of random search after 20, and at
most 5 %; empty if it never is.

To make a table: `kbatch cats-vs-dogs --tuner random --trials 60
--confirm 2 --confirm-top 60 --out DIR`, then
`kbatch.testing.Replay.of_project("DIR/search").save(TABLE)`.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gaussian_process
import numpy as np
import rows
from scipy.stats import spearmanr

from kbatch import outcome
from kbatch.search import oracle, proposals, rungs
from kbatch.testing import Replay
from kbatch.testing._table import read

SHOWN = (2, 5, 10, 20, 30)  # horizons
CLOSE = 0.05
LATE = 0.01  # share of a budget that trials may end after it: a measurement follows its mark
COLUMNS = (
    *("table", "recipes", "noise", "policy", "seeds"),
    *(f"regret_{horizons}" for horizons in SHOWN),
    *(f"mean_{horizons}" for horizons in SHOWN),
    *("to_random_20", "to_5_percent", "trials_of_10_horizons"),
)


# Settings of kbatch's search that `--policies` can change: module, name and how it is read.
SETTINGS = {
    "kept": (rungs, "KEPT", int),
    "whole": (rungs, "WHOLE_RUNG", int),
    "random": (proposals, "RANDOM_TRIALS", int),
    "repeated": (oracle, "REPEATED_FROM", int),
    "at_once": (oracle, "AT_ONCE", int),
    "second_size": (oracle, "SECOND_SIZE", int),
    "beaten": (oracle, "BEATEN", float),
    "gp": (oracle, "Proposer", gaussian_process.from_whole),
}
EARLY_MARKS = (4, 7)  # a ninth and a third of the horizon
STARTS = {"poor": 0.1, "good": 0.9}  # better than so many of a table's recipes


@contextlib.contextmanager
def settled(policy):
    """Change the settings that the text of a policy names, and give the policy's own name."""
    name, _, changes = policy.partition(":")
    with contextlib.ExitStack() as stack:
        for change in filter(None, changes.split("+")):
            setting, _, text = change.partition("=")
            module, attribute, read = SETTINGS[setting]
            stack.enter_context(mock.patch.object(module, attribute, read(text)))
        yield name


def regrets(replay, replayed, horizons):
    """Return the regret after 1, 2, … horizons of one search; 1 before its first trial."""
    found = []
    for limit in range(1, horizons + 1):
        within = trials_within(replayed, limit * replay.horizon)
        found.append(replay.regret(replayed[within - 1].recommended) if within else 1.0)
    return found


def first(medians, most):
    """Return the first number of horizons after which a median is at most a value; else empty."""
    return next((at for at, median in enumerate(medians, 1) if median <= most), "")


def trials_within(replayed, seconds):
    """Return how many trials had ended after some training seconds."""
    spent = np.cumsum([each.seconds for each in replayed])
    return int(np.sum(spent <= (1 + LATE) * seconds))


def at_some(curve, name):
    """Return the values of a curve after some horizons, by name."""
    within = [at for at in SHOWN if at <= len(curve)]
    return {f"{name}_{at}": round(float(curve[at - 1]), 3) for at in within}


def better_than(replay, share):
    """Return the recipe that scores better than a share of a table's."""
    return sorted(replay.recipes, key=replay.mean)[int(share * len(replay.recipes))]


def beginning(replay, recipe):
    """kbatch's search from a recipe; the table's first one stands for kbatch's default."""
    start = replay.points.values(recipe)

    def make(**arguments):
        made = oracle.Oracle(start, **arguments)
        made.begin_at(start, False, default=replay.points.values(replay.recipes[0]))
        return made

    return make


def bench(replay, policies, seeds, horizons):
    """Return the medians of each policy over the seeds, and its rows without the table's name."""
    medians, found = {}, []
    for policy in policies:
        text, _, start = policy.partition("@")
        with settled(text) as name:
            begun = beginning(replay, better_than(replay, STARTS[start])) if start else name
            searches = [replay.trials(begun, horizons, seed) for seed in range(seeds)]
        every = np.array([regrets(replay, each, horizons) for each in searches])
        medians[policy] = np.median(every, axis=0)
        within = [trials_within(each, 10 * replay.horizon) for each in searches]
        found.append(
            {
                "policy": policy,
                "seeds": seeds,
                **at_some(medians[policy], "regret"),
                **at_some(np.mean(every, axis=0), "mean"),
                "to_random_20": first(medians[policy], medians["random"][min(20, horizons) - 1]),
                "to_5_percent": first(medians[policy], CLOSE),
                "trials_of_10_horizons": float(np.median(within)),
            }
        )
    return found


def error(replay):
    """Return the standard error of a recipe's mean, of the better half, as a share of the best."""
    better = sorted(replay.recipes, key=replay.regret)[: len(replay.recipes) // 2]
    held = [[replay.held(each) for each in replay.of[recipe]] for recipe in better]
    variances = [np.var(each, ddof=1) / len(each) for each in held]
    return float(np.sqrt(np.mean(variances)) / replay.mean(better[0]))


def shown(file, noise):
    """Return the rows of a file as a table in Markdown: median regrets, in brackets the means."""
    found = {}
    for row in rows.read(file):
        if float(row["noise"]) == noise and row["policy"] in ("random", "kbatch"):
            found.setdefault(row["table"], {})[row["policy"]] = row
    pairs = (*(f"{at}" for at in SHOWN[1:4]), "to random's 20", "to 5 %")
    titles = [f"{name}: random | kbatch" for name in pairs]
    lines = [f"| table | {' | '.join(titles)} |", "|---" * (1 + 2 * len(pairs)) + "|"]
    for table, of_policy in found.items():
        sides = [of_policy["random"], of_policy["kbatch"]]
        cells = []
        for at in SHOWN[1:4]:
            for side in sides:
                regret, mean = float(side[f"regret_{at}"]), float(side[f"mean_{at}"])
                cells.append(f"{regret:.3f} ({mean:.3f})")
        for name in ("to_random_20", "to_5_percent"):
            cells += [side[name] or "–" for side in sides]
        lines.append(f"| `{table.removeprefix('replay_')}` | {' | '.join(cells)} |")
    return lines


def own_time(table, seeds=5, horizons=20):
    """Return a line on the CPU time of the proposals of some searches."""
    proposal, spent = oracle.Oracle.populate_space, []

    def timed(self, trial_id):
        began = time.process_time()
        try:
            return proposal(self, trial_id)
        finally:
            spent.append(1000 * (time.process_time() - began))

    replay = Replay.load(table)
    with mock.patch.object(oracle.Oracle, "populate_space", timed):
        for seed in range(seeds):
            replay.trials("kbatch", horizons, seed)
    return (
        f"{table.name}: {len(spent)} proposals took {np.mean(spent):.1f} ms of CPU time each on "
        f"average, {np.max(spent):.0f} at most"
    )


def early(table):
    """Return lines on what the trainings of a table tell early."""
    replay, trainings = Replay.load(table), {}
    for training in read(table):
        trainings.setdefault(training.recipe, []).append(training)
    means = [replay.mean(recipe) for recipe in trainings]
    second, best = sorted(means)[-2:]
    lines = [
        f"{table.name}: the best recipe scores {best / second - 1:.1%} more than the next",
        f"{table.name}: standard error of the better half's means: {error(replay):.1%} of the best",
    ]
    for mark in EARLY_MARKS:
        seconds = outcome.marks(replay.horizon)[mark - 1]
        held = [[each.gain(seconds) for each in of_recipe] for of_recipe in trainings.values()]
        found = [spearmanr(of_seed, means)[0] for of_seed in zip(*held, strict=True)]
        texts = ", ".join(f"{value:.2f}" for value in found)
        lines.append(f"{table.name}: rank correlation after {seconds:.2f} s: {texts}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--policies", default="random,bayesian,kbatch")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--horizons", type=int, default=40)
    parser.add_argument("--noise", default="1,0.25")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--early", action="store_true")
    parser.add_argument("--own-time", action="store_true")
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        for noise in map(float, options.noise.split(",")):
            print(*shown(options.show, noise), "", sep="\n")
        return
    if not options.tables:
        parser.error("name a TABLE at least")
    if options.early:
        for table in options.tables:
            print(*early(table), sep="\n")
        return
    if options.own_time:
        print(*map(own_time, options.tables), sep="\n")
        return
    policies = ["random", *(each for each in options.policies.split(",") if each != "random")]
    for table in options.tables:
        for noise in map(float, options.noise.split(",")):
            replay = Replay.load(table, noise)
            names = {"table": table.name.split(".")[0], "recipes": len(replay.recipes)}
            for row in bench(replay, policies, options.seeds, options.horizons):
                line = {**names, "noise": noise, **row}
                rows.tell(options.out, COLUMNS, line)


if __name__ == "__main__":
    main()
