"""Real searches from a poor recipe, at equal wall-clock time: kbatch, Optuna and KerasTuner.

Usage: python scripts/bench_poor_start.py [TASK…] [--tools kbatch,optuna,keras_tuner] [--seeds 5]
[--budget 60] [--seconds 2] [--out FILE] [--show FILE]

A TASK is a name of `scripts/table_tasks.py`. Whoever searches has batch 8 and Adam at 3e-5 today,
and `--budget` seconds by the wall clock for batch size, optimizer (SGD or Adam) and rate. Each tool
is used as its own pages show it:

- kbatch: `kbatch.Tuner(build, seconds_per_trial=…)`, with that recipe as the baseline.
- Optuna: an objective that calls `fit` an epoch at a time for as long, reports each to a
  `HyperbandPruner`, and gives the best value; `TPESampler`, told today's recipe as its first trial.
- KerasTuner: `BayesianOptimization` of a `HyperModel` whose `fit` has the batch size, with as many
  epochs as the default recipe makes in that time.

The recipe that a tool recommends, and today's, are then trained for `--seconds` with three fresh
seeds by `kbatch.train`; a row holds the mean value held above chance. `--show` prints means and
standard errors over seeds.
"""

import argparse
import dataclasses
import itertools
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_tuner
import numpy as np
import optuna
import rows
import table_tasks

import kbatch

COLUMNS = ("task", "tool", "seed", "gain", "recipe", "trials", "search_seconds")
SIZES = (8, 16, 32, 64, 128, 256, 512)
RATES = {"sgd": (1e-3, 1e-1), "adam": (1e-5, 1e-2)}
POOR = kbatch.Recipe(batch_size=8, optimizer="adam", learning_rate=3e-5)
JUDGES = 3  # fresh seeds
FRESH = 1000  # the first of them


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a tool is given."""

    build: object  # returns the compiled model
    training: tuple
    validation: tuple
    seconds: float  # of a trial
    budget: float  # seconds by the wall clock
    seed: int


def of_kbatch(given):
    """Search with kbatch's own tuner."""

    def build():
        model = given.build()
        model.optimizer.learning_rate = POOR.learning_rate
        return model

    space = kbatch.Space(batch_size=SIZES, baseline=POOR, jit_compile=False)
    with tempfile.TemporaryDirectory() as folder:
        tuner = kbatch.Tuner(
            build, space, seconds_per_trial=given.seconds, directory=folder, tuner_seed=given.seed
        )
        tuner.search(
            *given.training, validation_data=given.validation, budget=given.budget, verbose=0
        )
        return kbatch.best_recipe(tuner), len(tuner.oracle.trials)


def compiled(given, optimizer, rate):
    """Return the model with an optimizer of Keras."""
    model = given.build()
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    loss = model.loss
    model.compile(kinds[optimizer](rate, **momentum), loss, metrics=["accuracy"])
    return model


def of_optuna(given):
    """Search with Optuna, as a script of a user's."""
    (x, y), ends = given.training, time.perf_counter() + given.budget

    def objective(trial):
        size = trial.suggest_categorical("batch_size", SIZES)
        optimizer = trial.suggest_categorical("optimizer", list(RATES))
        rate = trial.suggest_float(f"rate_{optimizer}", *RATES[optimizer], log=True)
        model, best, spent = compiled(given, optimizer, rate), 0.0, 0.0
        for epoch in itertools.count():
            began = time.perf_counter()
            fitted = model.fit(
                x, y, batch_size=size, validation_data=given.validation, verbose=0
            ).history
            spent += (time.perf_counter() - began) if epoch else 0.0  # not of the first, a trace
            best = max(best, fitted["val_accuracy"][-1])
            trial.report(best, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
            if spent >= given.seconds:
                return best

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=given.seed),
        pruner=optuna.pruners.HyperbandPruner(),
    )
    today = {"batch_size": POOR.batch_size, "optimizer": POOR.optimizer}
    study.enqueue_trial({**today, f"rate_{POOR.optimizer}": POOR.learning_rate})
    while time.perf_counter() < ends:
        study.optimize(objective, n_trials=1)
    best = study.best_params
    rate = best[f"rate_{best['optimizer']}"]
    recipe = kbatch.Recipe(best["batch_size"], best["optimizer"], learning_rate=rate)
    return recipe, len(study.trials)


class Timed(keras_tuner.BayesianOptimization):
    """KerasTuner's search, ended by the clock."""

    ends = float("inf")

    def on_trial_end(self, trial):
        """Begin no other trial once the time is over."""
        super().on_trial_end(trial)
        if time.perf_counter() >= self.ends:
            self.oracle.max_trials = len(self.oracle.trials)


def of_keras_tuner(given):
    """Search with KerasTuner, as its guide shows."""

    class Tuned(keras_tuner.HyperModel):
        def build(self, hp):
            optimizer = hp.Choice("optimizer", list(RATES))
            with hp.conditional_scope("optimizer", [optimizer]):
                lowest, highest = RATES[optimizer]
                rate = hp.Float(f"rate_{optimizer}", lowest, highest, sampling="log")
            return compiled(given, optimizer, rate)

        def fit(self, hp, model, *args, **kwargs):
            size = hp.Choice("batch_size", list(SIZES), default=POOR.batch_size)
            return model.fit(*args, batch_size=size, **kwargs)

    ends = time.perf_counter() + given.budget
    model, (x, y) = compiled(given, "adam", 1e-3), given.training
    model.fit(x, y, verbose=0)
    began = time.perf_counter()
    model.fit(x, y, verbose=0, validation_data=given.validation)
    epochs = max(int(given.seconds / (time.perf_counter() - began)), 1)
    with tempfile.TemporaryDirectory() as folder:
        tuner = Timed(
            Tuned(), "val_accuracy", max_trials=10**4, seed=given.seed + 1, directory=folder
        )
        tuner.ends = ends
        tuner.search(x, y, validation_data=given.validation, epochs=epochs, verbose=0)
        best = tuner.get_best_hyperparameters()[0]
        trials = len(tuner.oracle.trials)
    optimizer = best.get("optimizer")
    recipe = kbatch.Recipe(
        best.get("batch_size"), optimizer, learning_rate=best.get(f"rate_{optimizer}")
    )
    return recipe, trials


TOOLS = {"kbatch": of_kbatch, "optuna": of_optuna, "keras_tuner": of_keras_tuner}


def gain_of(recipe, given):
    """Return the mean value above chance that a recipe holds with fresh seeds."""
    found = []
    for seed in range(JUDGES):
        spec = kbatch.ModelSpec(given.build, seed=FRESH + JUDGES * given.seed + seed)
        _, outcome = kbatch.train(
            recipe,
            spec,
            *given.training,
            given.validation,
            seconds=given.seconds,
            validation_batch_size=512,
        )
        chance = np.bincount(given.validation[1]).max() / len(given.validation[1])
        found.append(max(outcome.value - chance, 0.0))
    return float(np.mean(found))


def told(options, task, tool, given):
    """Search once, judge what is recommended, and tell."""
    began = time.perf_counter()
    recipe, trials = TOOLS[tool](given)
    spent = time.perf_counter() - began
    row = {
        **{"task": task, "tool": tool, "seed": given.seed, "gain": f"{gain_of(recipe, given):.4f}"},
        **{"recipe": str(recipe), "trials": trials, "search_seconds": f"{spent:.0f}"},
    }
    rows.tell(options.out, COLUMNS, row)


def shown(file):
    """Return lines in Markdown: mean gain and standard error of each tool on each task."""
    lines = ["| task | tool | value above chance | trials |", "|---|---|---|---|"]
    found = {}
    for row in rows.read(file):
        found.setdefault((row["task"], row["tool"]), []).append(row)
    for (task, tool), of_tool in found.items():
        gains = np.array([float(row["gain"]) for row in of_tool])
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        trials = np.mean([int(row["trials"]) for row in of_tool])
        lines.append(f"| {task} | {tool} | {gains.mean():.3f} ± {error:.3f} | {trials:.0f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=["pets_conv", "mnist1d_conv"])
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        print(*shown(options.show), sep="\n")
        return
    for task in options.tasks:
        of_task = table_tasks.TASKS[task]
        training, validation = of_task.examples()
        build = of_task.build(*training)
        made = (build, training, validation, options.seconds, options.budget)
        for seed in range(options.seeds):
            for tool in options.tools.split(","):
                told(options, task, tool, Searched(*made, seed))
        given = Searched(*made, 0)
        row = {"task": task, "tool": "today", "seed": 0, "gain": f"{gain_of(POOR, given):.4f}"}
        rows.tell(options.out, COLUMNS, {**row, "recipe": str(POOR), "trials": 0})


if __name__ == "__main__":
    main()
