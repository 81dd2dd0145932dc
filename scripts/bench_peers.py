"""kbatch's search beside its peers on recorded trainings, at equal training seconds.

Usage: python scripts/bench_peers.py [TABLE…] [--policies kbatch,random,…] [--seeds 3]
[--starts default,poor,good] [--horizons 20] [--noise 1] [--out FILE]
or: python scripts/bench_peers.py --show FILE

A TABLE holds the trainings of the same recipes on one task (`scripts/record_table.py`); without one
all of `scripts/results/tables` are searched. Policies: `kbatch`, with settings as in
`bench_search.py`; `random`, `bayesian` and `hyperband` of KerasTuner; `tpe`, `tpe+hyperband` and
`gp` of Optuna; and `smac`, `dehb` and `priorband` of `share_peers.py`. Each is given the start
first: the table's default recipe, one that is better than a tenth of the table's (poor), or better
than nine tenths (good).

What a policy proposes is answered by the training of the nearest recipe that was not given yet, and
the same proposal by the same training. All search the same axes: batch size, optimizer, schedule,
and a rate for each optimizer, at batch 32. `--noise 0.25` moves each training to a quarter of its
distance from the mean of its recipe.

A row holds the mean regret of one table after so many horizons: the share of the best mean score
that the recommended recipe loses. `--show` prints the means over tables, and their standard error.
"""

import argparse
import contextlib
import functools
import io
import math
import os
import statistics
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_tuner
import numpy as np
import optuna
import rows
from bench_lcbench import by_optuna, by_oracle, hyperband_oracle, tpe
from bench_portfolio import TABLES, name_of
from bench_search import STARTS, beginning, better_than, regrets, settled
from share_peers import PEERS, by_shares

from kbatch import outcome
from kbatch.testing import Replay

SHOWN = (5, 10, 20)
COLUMNS = ("table", "policy", "start", "noise", "seeds", *(f"regret_{at}" for at in SHOWN))


def started(replay, start):
    """Return the recipe of a table that a search begins with."""
    if start == "default":
        return replay.recipes[0]
    return better_than(replay, STARTS[start])


class Curves:
    """A table as a task: what the recipe nearest to a proposal measured."""

    def __init__(self, replay):
        self.replay, self.horizon = replay, replay.horizon
        self.chance = replay.trainings[0].chance

    def held(self, curve):
        return outcome.score(curve, self.horizon, self.chance) * self.horizon


class TableSearch:
    """A search of one table: after how many horizons what was recommended."""

    def __init__(self, replay, start, seed, horizons):
        self.task, self.seed, self.horizons = Curves(replay), seed, horizons
        self._replay, self.spent = replay, 0.0
        self._rates = [each for each in replay.points.dimensions if each.optimizer]
        self.start = replay.points.values(started(replay, start))
        self._untried, self._given = set(range(len(replay.recipes))), {}
        seeds = max(map(len, replay.of.values()))
        self._training = int(np.random.default_rng(seed).permutation(seeds)[0])
        self._recommended = []

    @property
    def is_over(self):
        return self.spent >= self.horizons or not self._untried

    def recipe_of(self, values):
        """The recipe of a trial's values; those that begin with KerasTuner's marks are none."""
        return {name: value for name, value in values.items() if "/" not in name}

    def in_space(self, recipe):
        return dict(recipe)

    def space(self):
        hp = keras_tuner.HyperParameters()
        self._replay.points.declare(hp)
        return hp

    def suggested(self, trial):
        """What a trial of Optuna's suggests, the rate of its optimizer alone."""
        found = {}
        for each in self._replay.points.dimensions:
            if not each.optimizer:
                found[each.name] = trial.suggest_categorical(each.name, list(each.values))
            elif each.optimizer == found["optimizer"]:
                least, most = each.values[0], each.values[-1]
                found[each.name] = trial.suggest_float(each.name, least, most, log=True)
        return found

    def train(self, recipe):
        """The curve of the nearest recipe that was not given yet; of the same, the same."""
        key = tuple(sorted(recipe.items()))
        if key not in self._given:
            place = self._replay.points.nearest(self._active(recipe), self._untried)
            self._untried.discard(place)
            self._given[key] = self._replay.recipes[place]
        trainings = self._replay.of[self._given[key]]
        return trainings[self._training % len(trainings)].curve

    def _active(self, recipe):
        """A recipe without the rates of other optimizers than its own."""
        others = {each.name for each in self._rates if each.optimizer != recipe["optimizer"]}
        return {name: value for name, value in recipe.items() if name not in others}

    def spend(self, seconds, recommended):
        """Take up that seconds were trained, and what would be recommended now."""
        self.spent += max(seconds / self.task.horizon, 0.01)
        if recommended is None:
            self._recommended.append((self.spent, 1.0))
            return
        recipe = self._given[tuple(sorted(recommended.items()))]
        self._recommended.append((self.spent, self._replay.regret(recipe)))

    def regret_after(self, horizons):
        within = [regret for spent, regret in self._recommended if spent <= 1.01 * horizons]
        return within[-1] if within else 1.0


def flat(search):
    """The axes of a table for peers that draw all of them, and the start with a rate for each."""
    sizes, others = [], []
    for each in search.task.replay.points.dimensions:
        if each.optimizer:
            others.append((each.name, each.values[0], each.values[-1], True, False))
        elif each.name == "batch_size":
            sizes.append((each.name, each.values))
        else:
            others.append((each.name, each.values))
    rates = {name: math.sqrt(of[0] * of[1]) for name, *of in others if len(of) > 1}
    return [*sizes, *others], {**rates, **search.start}


def by_peer(search, peer):
    """Search by a peer of `share_peers.py`, from the start."""
    axes, start = flat(search)
    by_shares(search, start, peer(axes))


POLICIES = {
    "random": lambda s: by_oracle(s, keras_tuner.oracles.RandomSearchOracle),
    "bayesian": lambda s: by_oracle(s, keras_tuner.oracles.BayesianOptimizationOracle),
    "hyperband": lambda s: by_oracle(s, hyperband_oracle),
    "tpe": lambda s: by_optuna(s, tpe),
    "tpe+hyperband": lambda s: by_optuna(s, tpe, optuna.pruners.HyperbandPruner(1, 27)),
    "gp": lambda s: by_optuna(s, optuna.samplers.GPSampler),
}
for _name, _peer in PEERS.items():
    POLICIES[_name] = functools.partial(by_peer, peer=_peer)


def searched(replay, policy, start, seed, horizons):
    """Return the regrets of one search after each of `SHOWN`."""
    shown = [at for at in SHOWN if at <= horizons]
    if policy.partition(":")[0] == "kbatch":
        with settled(policy):
            make = beginning(replay, started(replay, start))
            found = regrets(replay, replay.trials(make, horizons, seed), horizons)
        return [found[at - 1] for at in shown]
    search = TableSearch(replay, start, seed, horizons)
    with contextlib.redirect_stdout(io.StringIO()):
        POLICIES[policy](search)
    return [search.regret_after(at) for at in shown]


def shown(file):
    """Return the rows of a file as a table in Markdown: means over tables and their errors."""
    found = {}
    for row in rows.read(file):
        regrets_of = [float(row[f"regret_{at}"]) for at in SHOWN if row[f"regret_{at}"]]
        found.setdefault(row["policy"], {}).setdefault(row["start"], []).append(regrets_of)
    starts = list(dict.fromkeys(start for of_start in found.values() for start in of_start))
    lines = [f"| policy | {' | '.join(starts)} |", "|---" * (1 + len(starts)) + "|"]
    for policy, of_start in found.items():
        cells = []
        for start in starts:
            regrets_of = 100 * np.array(of_start[start])
            errors = regrets_of.std(axis=0, ddof=1) / math.sqrt(len(regrets_of))
            pairs = zip(regrets_of.mean(axis=0), errors, strict=True)
            cells.append(" / ".join(f"{mean:.1f} ± {error:.1f}" for mean, error in pairs))
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--policies", default="kbatch,random,bayesian,hyperband,tpe,tpe+hyperband")
    parser.add_argument("--starts", default="default,poor,good")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--horizons", type=int, default=20)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        print(*shown(options.show), sep="\n")
        return
    policies = options.policies.split(",")
    if {each.partition(":")[0] for each in policies} - {"kbatch", *POLICIES}:
        parser.error(f"name policies among kbatch, {', '.join(POLICIES)}, not {options.policies}")
    if set(options.starts.split(",")) - {"default", *STARTS}:
        parser.error(f"name starts among default, {', '.join(STARTS)}, not {options.starts}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for path in options.tables or sorted(TABLES.glob("*.jsonl.gz")):
        replay = Replay.load(path, options.noise)
        for policy in policies:
            for start in options.starts.split(","):
                every = [
                    searched(replay, policy, start, seed, options.horizons)
                    for seed in range(options.seeds)
                ]
                means = [round(statistics.fmean(each), 4) for each in zip(*every, strict=True)]
                line = {"table": name_of(path), "policy": policy, "start": start}
                line |= {"noise": options.noise, "seeds": options.seeds}
                line |= dict(zip((f"regret_{at}" for at in SHOWN), means, strict=False))
                rows.tell(options.out, COLUMNS, line)


if __name__ == "__main__":
    main()
