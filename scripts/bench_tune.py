"""Is the baseline of `kbatch tune` what the script does today? Speed and accuracy side by side.

Each script of tests/support/users_scripts is run up to its fit. Three pairs of trainings follow
from the same weights: Keras' own fit, and kbatch's training by today's recipe. Printed are how many
times as fast kbatch's is (without the first epoch), and the last value of the metric.

    python scripts/bench_tune.py [NAME …]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from kbatch.data.streams import inputs_of
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import ModelMaker
from kbatch.outcome import Goal
from kbatch.standin import winner
from kbatch.standin.fit_call import KERAS_FIT
from kbatch.standin.fit_taker import Ended, FitTaker
from kbatch.standin.taken import Taken, first_inputs
from kbatch.standin.users_script import UsersScript
from kbatch.training.arguments import FitArguments

SCRIPTS = Path(__file__).parents[1] / "tests" / "support" / "users_scripts"
EPOCHS, PAIRS = 8, 3


class EpochTimes(keras.callbacks.Callback):
    """The seconds of each epoch but the first, validation left out."""

    def on_epoch_begin(self, epoch, logs=None):
        self.began, self.seconds = time.perf_counter(), getattr(self, "seconds", [])

    def on_train_batch_end(self, batch, logs=None):
        self.last = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        if epoch:
            self.seconds.append(self.last - self.began)


def measured(call):
    """Print one line for a call of fit."""
    taken = Taken.of(call)
    maker = ModelMaker.of(ModelSpec.of(taken.build))
    recipe = maker.baseline(taken.space(None, {}).baseline)
    data = FitArguments.parse((), taken.arguments).data(lambda: inputs_of(call.model))
    direction = "min" if taken.metric.endswith(("loss", "mae")) else "max"
    goal = Goal(1.0, taken.metric, direction, 0.0)
    if not call.model.built:
        call.model(first_inputs(call.arguments["x"]))
    start, ratios, values = call.model.get_weights(), [], {"plain": [], "kbatch": []}
    for _ in range(PAIRS):
        seconds = {}
        for name in ("plain", "kbatch"):
            call.model.set_weights(start)
            own = dict(call.model._compile_config.config)
            times = EpochTimes()
            again = {**call.arguments, "epochs": EPOCHS, "callbacks": [times], "verbose": 0}
            if name == "plain":
                call.model.compile(**own)
                history = KERAS_FIT(call.model, **again)
            else:
                arguments = {**taken.arguments, "callbacks": [times]}
                new = type(call)(call.model, again)
                fields = (taken.build, arguments, taken.batch_size, taken.metric, ())
                history = winner.trained(Taken(new, *fields), recipe, maker, data, goal)
            seconds[name] = statistics.median(times.seconds)
            values[name].append(history.history[taken.metric][-1])
        ratios.append(seconds["plain"] / seconds["kbatch"])
    ends = {
        name: f"{statistics.fmean(each):.4g} ({min(each):.4g}–{max(each):.4g})"
        for name, each in values.items()
    }
    print(
        f"{Path(sys.argv[0]).stem:16} {taken.metric:24} speed {statistics.median(ratios):.2f}x "
        f"({min(ratios):.2f}–{max(ratios):.2f}); plain {ends['plain']}, kbatch {ends['kbatch']}",
        flush=True,
    )
    raise Ended


def main():
    """Measure the scripts that are named, or all."""
    known = sorted(each.stem for each in SCRIPTS.glob("*.py") if each.stem != "loop")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"scripts, of {', '.join(known)}; all by default")
    for name in parser.parse_args().names or known:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                FitTaker(UsersScript(str(SCRIPTS / f"{name}.py")), None, measured).run()
            except Ended:
                keras.config.set_dtype_policy("float32")
                os.chdir("/")


if __name__ == "__main__":
    main()
