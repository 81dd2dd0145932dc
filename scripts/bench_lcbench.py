"""Ways of search compared on LCBench: trainings that a surrogate answers in milliseconds.

Usage: python scripts/bench_lcbench.py DIR [--policies random,kbatch,…] [--starts default,poor,good]
[--seeds 5] [--horizons 20] [--noise 1] [--tasks 126026,…] [--out FILE]

DIR holds the surrogate of LCBench (Zimmer et al. 2021) that YAHPO Gym publishes: `model.onnx` and
`encoding.json`. It needs `pip install onnxruntime`; Optuna's `gp` needs `torch` too.

The axes are those of LCBench: batch size, learning rate, momentum, weight decay, and as the user's
own layers, units and dropout. A horizon is the median time of 20 epochs over random recipes. A
curve is read at kbatch's twelve marks. What a training measures differs from the surrogate by a
normal error of 0.7 points for all of it and 0.3 for each mark, times `--noise`. The regret is the
share of the best value above chance that the recommended recipe loses, without noise; chance is the
lowest value of 3,000 random recipes, and the best is the best of these and of 400 near the best.

A start is what the search begins with: `default` is batch 32, SGD 0.01 with momentum 0.9, two
layers of 128 units; `poor` and `good` are better than a tenth, or nine tenths, of the random
recipes. Every policy is given it as its first trial. kbatch's second is its default recipe, here
that of `default` with layers, units and dropout of the start.

Policies: `random`; `kbatch`, its own oracle, `kbatch:kept=2` with other settings (see
`bench_search.py`); `bayesian` and `hyperband` of KerasTuner; `tpe` and `gp` of Optuna, each
training whole, `tpe+hyperband` with Optuna's pruner at the twelve marks, and `tpe+default`, which
is told kbatch's second trial too; `smac`, `dehb` and `priorband`, see `share_peers.py`.

The sample of an error is the tasks: a row holds the mean over their means, and its standard error;
after 5 horizons also the mean of each task, in the order of `--tasks`, and of each seed. The same
seeds serve all tasks, so that error does not hold what the seeds do.
"""

import argparse
import contextlib
import functools
import io
import json
import math
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_tuner
import numpy as np
import onnxruntime
import optuna
import rows
from bench_search import settled
from share_peers import PEERS, by_shares

from kbatch import outcome
from kbatch.search.oracle import REPEAT, Oracle
from kbatch.search.rungs import RUNG_MARK

TASKS = (
    *("126026", "167152", "167168", "167185", "189862", "189865", "189873", "189906"),
    *("189908", "146212", "167104", "167149"),  # whose optimum lies where there are data
)
EPOCHS, OF_HORIZON = 52, 20
OF_TRAINING, OF_MARK = 0.007, 0.003  # standard deviations of what is measured
RANDOM, NEAR = 3000, 400
SHOWN = (2, 5, 10, 20, 40)
SPREAD_AT = 5  # horizons after which a row holds the regret of each task and each seed too
# Name, least, most, whether it is drawn by its logarithm, whether it is a whole number.
AXES = (
    ("batch_size", 16, 512, True, True),
    ("learning_rate", 1e-4, 1e-1, True, False),
    ("momentum", 0.1, 0.99, False, False),
    ("weight_decay", 1e-5, 1e-1, True, False),
    ("num_layers", 1, 5, False, True),
    ("max_units", 64, 1024, True, True),
    ("max_dropout", 0.0, 1.0, False, False),
)
DEFAULT = {
    **{"batch_size": 32, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    **{"num_layers": 2, "max_units": 128, "max_dropout": 0.0},
}
# What kbatch has a default of; the others are the user's own.
OF_RECIPES = ("batch_size", "learning_rate", "momentum", "weight_decay")
SHARES = {"poor": 0.1, "good": 0.9}
OBJECTIVE = "score"
COLUMNS = (
    *("policy", "start", "noise", "tasks", "seeds"),
    *(f"{name}_{at}" for at in SHOWN for name in ("regret", "error")),
    *("recipes", "cpu_ms", "by_task_5", "by_seed_5"),
)


def from_unit(place, axis):
    """The value of an axis at a place from 0 to 1."""
    _, least, most, is_log, is_whole = axis
    if is_log:
        value = math.exp(math.log(least) + place * (math.log(most) - math.log(least)))
    else:
        value = least + place * (most - least)
    return round(value) if is_whole else value


def recipe_at(places):
    return {axis[0]: from_unit(float(p), axis) for p, axis in zip(places, AXES, strict=True)}


def near(recipe, rng):
    """A recipe with each value moved by about a twentieth of its range."""
    moved = []
    for name, least, most, is_log, _ in AXES:
        low, high, value = (
            (math.log(least), math.log(most), math.log(recipe[name]))
            if is_log
            else (least, most, recipe[name])
        )
        moved.append(np.clip((value - low) / (high - low) + rng.normal(0, 0.05), 0, 1))
    return recipe_at(moved)


class Task:
    """One data set of LCBench, and what is known of it."""

    def __init__(self, session, number, name):
        self.name, self._session, self._number = name, session, number
        rng = np.random.default_rng(0)
        recipes = [recipe_at(places) for places in rng.random((RANDOM, len(AXES)))]
        raw = [self._answer(recipe) for recipe in recipes]
        self.horizon = float(np.median([times[OF_HORIZON - 1] for times, _ in raw]))
        self.chance = float(min(values[-1] for _, values in raw))
        known = sorted(((self.value(each), at) for at, each in enumerate(recipes)), reverse=True)
        self._in_order = [recipes[at] for _, at in reversed(known)]
        tried = [near(recipes[at], rng) for _, at in known[:10] for _ in range(NEAR // 10)]
        self.best = max(known[0][0], *map(self.value, tried))

    def start(self, name):
        """The recipe that a search begins with."""
        if name == "default":
            return DEFAULT
        return self._in_order[int(SHARES[name] * len(self._in_order))]

    def _answer(self, recipe):
        """The seconds so far and the value after each epoch."""
        epochs = np.arange(1, EPOCHS + 1)
        rest = np.tile([recipe[axis[0]] for axis in AXES], (EPOCHS, 1))
        inputs = np.column_stack([epochs, rest]).astype("float32")
        number = np.full((EPOCHS, 1), self._number, "int32")
        found = self._session.run(None, {"x_cat": number, "x_cont": inputs})[0]
        return np.maximum.accumulate(found[:, 0]), found[:, 1] / 100

    def curve(self, recipe):
        """The curve of a training at kbatch's marks, without noise."""
        times, values = self._answer(recipe)
        ended = [int(np.sum(times <= mark)) for mark in outcome.marks(self.horizon)]
        held = [self.chance if not epochs else float(values[epochs - 1]) for epochs in ended]
        return tuple(zip(outcome.marks(self.horizon), held, strict=True))

    def noisy(self, recipe, rng, noise):
        """The curve that one training of the recipe measures."""
        offset = rng.normal(0, OF_TRAINING * noise)
        return tuple(
            (at, value + offset + rng.normal(0, OF_MARK * noise))
            for at, value in self.curve(recipe)
        )

    def value(self, recipe):
        """The value above chance that the recipe holds at the horizon, without noise."""
        return self.held(self.curve(recipe))

    def held(self, curve):
        return outcome.score(curve, self.horizon, self.chance) * self.horizon

    def regret(self, recipe):
        return 1 - max(self.value(recipe), 0.0) / self.best


def tasks_of(folder, names):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    numbers = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
    return [Task(session, numbers[name], name) for name in names]


class Search:
    """A search of one task: what was trained, and after how many horizons what was recommended."""

    def __init__(self, task, start, seed, noise, horizons):
        self.task, self.start, self.seed, self.noise = task, start, seed, noise
        self.horizons, self.spent, self.recipes = horizons, 0.0, 0
        self._rng = np.random.default_rng([seed, int(task.name)])
        self._recommended = []  # pairs of horizons spent and the regret from there on

    @property
    def is_over(self):
        return self.spent >= self.horizons

    def space(self):
        return space()

    def in_space(self, recipe):
        return in_space(recipe)

    def suggested(self, trial):
        return suggested(trial)

    def recipe_of(self, values):
        """The recipe of a trial's values."""
        return {axis[0]: values[axis[0]] for axis in AXES}

    def begin(self, oracle):
        """Tell kbatch's oracle the start, and by how much equal recipes may differ."""
        oracle.begin_at(in_space(self.start), False, default=default_of(self.start))
        oracle.margin = 2 * math.sqrt(2) * math.hypot(OF_TRAINING, OF_MARK) * self.noise

    def train(self, recipe):
        self.recipes += 1
        return self.task.noisy(recipe, self._rng, self.noise)

    def spend(self, seconds, recommended):
        """Take up that seconds were trained, and what would be recommended now."""
        self.spent += seconds / self.task.horizon
        if self.spent <= 1.01 * self.horizons:
            regret = 1.0 if recommended is None else self.task.regret(recommended)
            self._recommended.append((self.spent, regret))

    def regret_after(self, horizons):
        within = [regret for spent, regret in self._recommended if spent <= 1.01 * horizons]
        return within[-1] if within else 1.0


def space():
    """The axes as KerasTuner's hyperparameters."""
    hp = keras_tuner.HyperParameters()
    sizes = [16, 32, 64, 128, 256, 512]
    hp.Choice("batch_size", sizes, ordered=True, default=32)
    for name, least, most, is_log, is_whole in AXES[1:]:
        sampling = {"sampling": "log"} if is_log else {}
        if is_whole:
            hp.Int(name, least, most, default=DEFAULT[name], **sampling)
        else:
            hp.Float(name, least, most, default=DEFAULT[name], **sampling)
    return hp


def in_space(recipe):
    """The recipe with the batch size nearest to it that the space has."""
    sizes = (16, 32, 64, 128, 256, 512)
    size = min(sizes, key=lambda each: abs(math.log(each / recipe["batch_size"])))
    return {**recipe, "batch_size": size}


def default_of(start):
    """The default recipe with the start's values of what is the user's own."""
    return {**start, **{name: DEFAULT[name] for name in OF_RECIPES}}


def by_oracle(search, make):
    """Search by an oracle of KerasTuner's, whose first trial is the start."""
    with tempfile.TemporaryDirectory() as folder:
        made = make(
            objective=keras_tuner.Objective(OBJECTIVE, "max"),
            max_trials=10**4,
            seed=search.seed + 1,  # KerasTuner takes a random number for 0
            hyperparameters=search.space(),
        )
        made._set_project_dir(folder, "search")
        if isinstance(made, Oracle):
            search.begin(made)
        given = {}
        while not search.is_over:
            trial = made.create_trial("tuner0")
            if trial.status != "RUNNING":
                return
            if not given and not isinstance(made, Oracle):
                trial.hyperparameters.values.update(search.in_space(search.start))
            values = trial.hyperparameters.values
            first = given.get(values.get(REPEAT) or values.get("tuner/trial_id"))
            given[trial.trial_id] = recipe = first or search.recipe_of(values)
            curve, seconds = answered(search, made, trial, recipe)
            is_whole = seconds >= 0.999 * search.task.horizon
            if is_whole or not isinstance(made, Oracle):
                within = tuple(point for point in curve if point[0] <= 1.001 * seconds)
                score = search.task.held(within) / search.task.horizon
                made.update_trial(trial.trial_id, {OBJECTIVE: score}, step=0)
            trial.status = "COMPLETED" if is_whole or not isinstance(made, Oracle) else "STOPPED"
            made.end_trial(trial)
            leaders = made.get_best_trials(1)
            best = given[leaders[0].trial_id] if leaders else None
            search.spend(seconds - begun_at(trial, search.task.horizon), best)


def answered(search, made, trial, recipe):
    """The curve of a trial, and the seconds to which it is trained."""
    curve, values = search.train(recipe), trial.hyperparameters.values
    if "tuner/epochs" in values:
        return curve, values["tuner/epochs"] / OF_HORIZON * search.task.horizon
    if isinstance(made, Oracle):
        gained = outcome.gain(curve[:RUNG_MARK], search.task.chance)
        if not made.goes_on(trial.trial_id, gained):
            return curve, curve[RUNG_MARK - 1][0]
    return curve, search.task.horizon


def begun_at(trial, horizon):
    """The seconds that Hyperband has trained a recipe before, which it goes on from."""
    return trial.hyperparameters.values.get("tuner/initial_epoch", 0) / OF_HORIZON * horizon


def by_optuna(search, sampler, pruner=None, later=()):
    """Search by a sampler of Optuna's, that is told the start, and other recipes after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(
            direction="maximize",
            sampler=sampler(seed=search.seed),
            pruner=pruner or optuna.pruners.NopPruner(),
        )
        for recipe in (search.start, *later):
            study.enqueue_trial(search.in_space(recipe))
        held = {}
        while not search.is_over:
            trial = study.ask()
            recipe = search.suggested(trial)
            curve, seconds = search.train(recipe), search.task.horizon
            for step, (at, _) in enumerate(curve if pruner else ()):
                trial.report(search.task.held(curve[: step + 1]), step)
                if step < len(curve) - 1 and trial.should_prune():
                    seconds = at
                    break
            if seconds == search.task.horizon:
                study.tell(trial, search.task.held(curve))
                held[trial.number] = (search.task.held(curve), recipe)
            else:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            best = max(held.values(), key=lambda each: each[0])[1] if held else None
            search.spend(seconds, best)


def suggested(trial):
    found = {"batch_size": trial.suggest_categorical("batch_size", [16, 32, 64, 128, 256, 512])}
    for name, least, most, is_log, is_whole in AXES[1:]:
        suggest = trial.suggest_int if is_whole else trial.suggest_float
        found[name] = suggest(name, least, most, log=is_log)
    return found


def hyperband_oracle(**arguments):
    del arguments["max_trials"]
    return keras_tuner.oracles.HyperbandOracle(
        max_epochs=OF_HORIZON, hyperband_iterations=100, **arguments
    )


def by_peer(search, begin):
    """Search by a peer of `share_peers.py`, from the start."""
    by_shares(search, search.in_space(search.start), begin)


tpe = functools.partial(optuna.samplers.TPESampler, multivariate=True)
POLICIES = {
    "random": lambda s: by_oracle(s, keras_tuner.oracles.RandomSearchOracle),
    "bayesian": lambda s: by_oracle(s, keras_tuner.oracles.BayesianOptimizationOracle),
    "hyperband": lambda s: by_oracle(s, hyperband_oracle),
    "kbatch": lambda s: by_oracle(s, Oracle),
    "tpe": lambda s: by_optuna(s, tpe),
    "tpe+hyperband": lambda s: by_optuna(s, tpe, optuna.pruners.HyperbandPruner(1, 12)),
    "tpe+default": lambda s: by_optuna(s, tpe, later=[default_of(s.start)]),
    "gp": lambda s: by_optuna(s, optuna.samplers.GPSampler),
}
for _name, _peer in PEERS.items():
    POLICIES[_name] = functools.partial(by_peer, begin=_peer(AXES))


def searched(policy, tasks, start, options):
    """One search a task and seed by a policy."""
    found = {}
    with settled(policy) as name, contextlib.redirect_stdout(io.StringIO()):
        for task in tasks:
            for seed in range(options.seeds):
                search = Search(task, task.start(start), seed, options.noise, options.horizons)
                POLICIES[name](search)
                found.setdefault(task.name, []).append(search)
    return found


def row(policy, start, options, found, cpu_seconds):
    """The regrets over the tasks, as one row."""
    line = {"policy": policy, "start": start, "noise": options.noise}
    line |= {"tasks": len(found), "seeds": options.seeds}
    for at in (each for each in SHOWN if each <= options.horizons):
        means = [
            statistics.fmean(search.regret_after(at) for search in searches)
            for searches in found.values()
        ]
        error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        if at == SPREAD_AT:
            of_seeds = [
                statistics.fmean(search.regret_after(at) for search in of_seed)
                for of_seed in zip(*found.values(), strict=True)
            ]
            line["by_task_5"] = ";".join(f"{mean:.3f}" for mean in means)
            line["by_seed_5"] = ";".join(f"{mean:.3f}" for mean in of_seeds)
        line |= {f"regret_{at}": round(statistics.fmean(means), 4), f"error_{at}": round(error, 4)}
    recipes = [search.recipes for searches in found.values() for search in searches]
    line["recipes"] = round(statistics.fmean(recipes), 1)
    line["cpu_ms"] = round(1e3 * cpu_seconds / sum(recipes), 1)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policies", default="random,kbatch,tpe,tpe+hyperband,hyperband")
    parser.add_argument("--starts", default="default,poor,good")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--horizons", type=int, default=20)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = {each.partition(":")[0] for each in options.policies.split(",")}
    if names - set(POLICIES):
        parser.error(f"name policies among {', '.join(POLICIES)}, not {', '.join(names)}")
    if set(options.starts.split(",")) - {"default", *SHARES}:
        parser.error(f"name starts among default, {', '.join(SHARES)}, not {options.starts}")
    if not (options.folder / "model.onnx").exists():
        parser.error(f"{options.folder} must hold model.onnx and encoding.json of YAHPO Gym")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tasks = tasks_of(options.folder, options.tasks.split(","))
    for start in options.starts.split(","):
        for policy in options.policies.split(","):
            began = time.process_time()
            found = searched(policy, tasks, start, options)
            line = row(policy, start, options, found, time.process_time() - began)
            rows.tell(options.out, COLUMNS, line)


if __name__ == "__main__":
    main()
