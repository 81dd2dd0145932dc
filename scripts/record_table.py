"""Tables of recorded trainings: the same 40 recipes, each with two seeds, on a task.

Usage: python scripts/record_table.py [TASK…] [--out FOLDER] [--seconds 2] [--recipes 40]
or: python scripts/record_table.py --own FILE.py --name NAME [--out FOLDER] [--seconds 2]

A TASK is a name of `scripts/table_tasks.py`, of which all are recorded without one, or of
`scripts/fresh_tasks.py`. FILE.py is a task of your own: a function `build()` that returns a
compiled model, and `data()` that returns `(x, y)` and `(x_val, y_val)`. `METRIC = "val_accuracy"`
may stand beside them. The table is FOLDER/NAME.jsonl.gz, which holds recipes, seeds and curves, and
nothing of model or data; send it with an issue, and it joins those of `scripts/results/tables`.

The recipes are kbatch's default one, those that differ from it in the optimizer or the schedule
alone, and random ones. They are the same for all tasks, so that a portfolio can be learned from
several tables (`scripts/bench_portfolio.py`). A task needs 512 training examples at least.

A recording that is cut short goes on where it was: its project stays in FOLDER/projects.
"""

import argparse
import os
import runpy
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import fresh_tasks
import keras_tuner
import numpy as np
import table_tasks

import kbatch
from kbatch.search.oracle import REPEAT
from kbatch.testing import Replay

SPACE = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "cosine"),
    "batch_size": (16, 32, 64, 128, 256, 512),
    "jit_compile": False,
    "policy": "float32",
}
DEFAULT = {"optimizer": "adam", "schedule": "constant", "batch_size": 32, "rate": 1e-3}
COMPILED = "compiled"
SEED = 36  # of the random recipes
RESULTS = Path(__file__).parent / "results" / "tables"


def settings(count):
    """Return the values of so many recipes, rates at batch 32; the default comes first."""
    rates = kbatch.Space(**SPACE).learning_rate
    middle = {name: float(np.sqrt(rates[name][0] * rates[name][1])) for name in SPACE["optimizer"]}
    middle["adamw"] = DEFAULT["rate"]
    found = [DEFAULT, {**DEFAULT, "schedule": "cosine"}]
    found += [{**DEFAULT, "optimizer": name, "rate": middle[name]} for name in ("sgd", "adamw")]
    random = np.random.default_rng(SEED)
    while len(found) < count:
        optimizer = str(random.choice(SPACE["optimizer"]))
        lowest, highest = np.log(rates[optimizer])
        rate = float(f"{np.exp(random.uniform(lowest, highest)):.3g}")
        size = int(random.choice(SPACE["batch_size"]))
        schedule = str(random.choice(SPACE["schedule"]))
        drawn = {"optimizer": optimizer, "schedule": schedule, "batch_size": size, "rate": rate}
        found.append(drawn)
    return found[:count]


class Listed(keras_tuner.Oracle):
    """Proposes listed values, and then each of them again with another seed."""

    def __init__(self, listed):
        super().__init__(
            objective=keras_tuner.Objective("score", "max"), max_trials=2 * len(listed)
        )
        self.listed = listed

    def populate_space(self, trial_id):
        """Return the values of the next trial; KerasTuner calls this."""
        begun, count = len(self.start_order), len(self.listed)
        if begun >= 2 * count:
            return {"status": "STOPPED", "values": None}
        values = dict(self.listed[begun % count])
        values[f"learning_rate_{values['optimizer']}"] = values.pop("rate")
        if begun >= count:
            values[REPEAT] = self.start_order[begun - count]
        return {"status": "RUNNING", "values": values}


def record(name, build, training, validation, options, metric):
    """Train all recipes on a task, and write its table."""
    project = options.out / "projects"
    hypermodel = kbatch.HyperModel(
        build,
        kbatch.Space(**SPACE),
        seconds_per_trial=options.seconds,
        metric=metric,
        chance=0.0 if metric == "val_r2_score" else None,
    )
    tuner = keras_tuner.Tuner(
        Listed(settings(options.recipes)), hypermodel, directory=project, project_name=name
    )
    tuner.search(
        *training, validation_data=validation, validation_batch_size=512, verbose=options.verbose
    )
    recorded = Replay.of_project(project / name).trainings
    # the baseline has the model's own optimizer; the first of the list stands for it
    table = Replay([each for each in recorded if each.recipe.optimizer != COMPILED])
    table.save(options.out / f"{name}.jsonl.gz")
    first = table.recipes[0]
    print(
        f"{name}: {len(table.trainings)} trainings of {len(table.recipes)} recipes; the default "
        f"holds {table.mean(first):.3f} above chance, {table.regret(first):.0%} less than the best",
        flush=True,
    )
    shutil.rmtree(project / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--own", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--recipes", type=int, default=40)
    parser.add_argument("--verbose", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.own:
        if not options.name:
            parser.error("give the table a --name")
        if not options.own.is_file():
            parser.error(f"{options.own} must be a file with build() and data()")
        own = runpy.run_path(str(options.own))
        lacking = sorted({"build", "data"} - own.keys())
        if lacking:
            parser.error(f"{options.own} must have {' and '.join(lacking)}")
        training, validation = own["data"]()
        metric = own.get("METRIC", "val_accuracy")
        record(options.name, own["build"], training, validation, options, metric)
        return
    tasks = table_tasks.TASKS | fresh_tasks.TASKS
    unknown = sorted(set(options.tasks) - set(tasks))
    if unknown:
        parser.error(f"no task {', '.join(unknown)}; there are {', '.join(tasks)}")
    for name in options.tasks or table_tasks.TASKS:
        if (options.out / f"{name}.jsonl.gz").exists():
            continue
        task = tasks[name]
        training, validation = task.examples()
        metric = "val_r2_score" if task.regression else "val_accuracy"
        record(name, task.build(*training), training, validation, options, metric)


if __name__ == "__main__":
    main()
