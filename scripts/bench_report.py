"""CPU seconds of `kbatch report`, of the live page and of a proposal, over the number of trials.

The records are made: nobody ran the searches. Each command runs in a process of its own.

    python scripts/bench_report.py [200 1000 5000]
"""

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
    """CPU seconds in which the model of kbatch's search proposes a trial, the median of five."""
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


def main():
    print("| trials | report, CPU s | page, CPU s | page, MB | a proposal, CPU ms |")
    print("|---|---|---|---|---|")
    for trials in map(int, sys.argv[1:] or ("200", "1000", "5000")):
        with tempfile.TemporaryDirectory() as folder:
            root = project(Path(folder), trials)
            report = cpu_seconds([sys.executable, "-m", "kbatch", "report", str(root)])
            again = page_seconds(root)
            size = max(file.stat().st_size for file in Path(folder).rglob("*.html"))
            measured = f"{report:.1f} | {again:.2f} | {size / 1e6:.1f}"
            proposal = 1e3 * proposal_seconds(trials)
            print(f"| {trials:,} | {measured} | {proposal:.0f} |", flush=True)


if __name__ == "__main__":
    main()
