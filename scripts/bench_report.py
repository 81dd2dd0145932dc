"""CPU seconds of a report, the live page, a proposal and resuming, over the number of trials.

The records are made: nobody ran the searches. Each command runs in a process of its own.

    python scripts/bench_report.py [200 1000 5000]
"""

import argparse
import contextlib
import dataclasses
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from result_records import confirmation, keep, record

SIZES = (32, 64, 128, 256, 512)


def project(folder, trials):
    """A finished search of so many trials, with a confirmation of its two best."""
    rng = random.Random(0)
    records = [record(-1, 0.2, "baseline", batch_size=32)]
    for trial in range(trials):
        stopped = rng.random() < 0.6
        fields = {"ended": "stopped"} if stopped else {}
        recipe = {"batch_size": rng.choice(SIZES), "learning_rate": 10 ** rng.uniform(-4, -1)}
        records.append(record(trial, rng.uniform(0.05, 0.35), **fields, **recipe))
    return keep(folder, [*records, *confirmation({-1: 0.2, 0: 0.3}, 3)])


def cpu_seconds(command):
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def page_seconds(folder):
    """Seconds to write the live page once more, after the first time."""
    from kbatch.results import page

    page.write(folder)
    began = time.process_time()
    page.write(folder)
    return time.process_time() - began


def proposal_seconds(trials):
    """CPU seconds in which kbatch's search proposes a trial by its model, the median of five."""
    import keras_tuner
    from keras_tuner.engine.trial import Trial

    import kbatch
    from kbatch.search.oracle import Oracle

    hp, rng = keras_tuner.HyperParameters(), random.Random(0)
    kbatch.Space().declare(hp)
    objective = keras_tuner.Objective("score", "max")
    oracle = Oracle(objective=objective, max_trials=10**6, hyperparameters=hp, seed=0)
    oracle.begin_at({}, False)
    for number in range(trials):
        ended = Trial(hp.copy(), trial_id=str(number), status="COMPLETED")
        ended.hyperparameters.values = oracle._random_values()
        ended.score = rng.random() if rng.random() < 0.4 else None
        oracle.trials[ended.trial_id] = ended
        oracle.start_order.append(ended.trial_id)
    seconds = []
    for _ in range(5):
        began = time.process_time()
        oracle._proposed()  # by the model: a repeat or a variation takes no time
        seconds.append(time.process_time() - began)
    return sorted(seconds)[2]


def build():
    """A model of nine weights, of which nothing is traced but its first step."""
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def resume_seconds(trials, folder):
    """CPU seconds until a search of so many trials would begin the next one.

    Two trials are trained; the others are copies of the second with another rate.
    """
    import numpy as np

    import kbatch
    from kbatch.records.store import Store

    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 8)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")

    def search(most):
        tuner = kbatch.Tuner(build, seconds_per_trial=0.2, directory=folder, project_name="p")
        data = {"x": x[:512], "y": y[:512], "validation_data": (x[512:], y[512:])}
        with contextlib.redirect_stdout(io.StringIO()):
            tuner.search(**data, max_trials=most, verbose=0)

    search(2)
    project, name = Path(folder) / "p", "{:04d}".format
    store = Store(project / "kbatch")
    last = [each for each in store.records() if each.purpose == "search"][-1]
    trained = json.loads((project / f"trial_{name(1)}" / "trial.json").read_text())
    state = json.loads((project / "oracle.json").read_text())
    for number in map(name, range(2, trials)):
        values = trained["hyperparameters"]["values"]
        values[f"learning_rate_{values['optimizer']}"] = 10 ** rng.uniform(-3, -2)
        (project / f"trial_{number}").mkdir()
        made = json.dumps({**trained, "trial_id": number})
        (project / f"trial_{number}" / "trial.json").write_text(made)
        store.end(dataclasses.replace(last, trial=int(number), key=number))
        state["ended"][number] = "horizon"
        state["start_order"].append(number)
        state["end_order"].append(number)
    (project / "oracle.json").write_text(json.dumps(state))
    began = time.process_time()
    search(trials)
    return time.process_time() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trials", nargs="*", type=int, default=[200, 1000, 5000])
    options = parser.parse_args()
    columns = ("report, CPU s", "page, CPU s", "page, MB", "a proposal, CPU ms", "resume, CPU s")
    print(f"| trials | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for trials in options.trials:
        with tempfile.TemporaryDirectory() as folder:
            root = project(Path(folder), trials)
            report = cpu_seconds([sys.executable, "-m", "kbatch", "report", str(root)])
            again = page_seconds(root)
            size = max(file.stat().st_size for file in Path(folder).rglob("*.html"))
            measured = f"{report:.1f} | {again:.2f} | {size / 1e6:.1f}"
            proposal = 1e3 * proposal_seconds(trials)
        with tempfile.TemporaryDirectory() as folder:
            resumed = resume_seconds(trials, folder)
        print(f"| {trials:,} | {measured} | {proposal:.0f} | {resumed:.1f} |", flush=True)


if __name__ == "__main__":
    main()
