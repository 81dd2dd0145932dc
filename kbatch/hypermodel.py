"""HyperModel: the border with KerasTuner. Declares the space, builds a recipe's model, and fits it on the clock."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
from keras_tuner.src.engine.tuner_utils import SaveBestEpoch, TunerCallback

from kbatch.building.compiled import CompileArguments
from kbatch.building.hyperparameters import GuardedHyperParameters
from kbatch.building.making import Maker, nothing
from kbatch.data.batches import Data
from kbatch.errors import KbatchError, SearchError
from kbatch.memory import feasible
from kbatch.memory.table import Table
from kbatch.records import disk
from kbatch.records.record import Record
from kbatch.space import Space
from kbatch.training.arguments import FitArguments
from kbatch.training.attempt import Attempt
from kbatch.training.comparison import Comparison, seconds_of_epochs
from kbatch.training.goal import Goal, goal_of
from kbatch.training.project import Identity, Project, Trained
from kbatch.training.running import check_sizes
from kbatch.training.watching import ProgressBar, Watcher

OBJECTIVE = "score"
UNSCORED = -1.0  # below every score, so that KerasTuner keeps only the first weights and the last


def objective() -> keras_tuner.Objective:
    """The objective of a search with `kbatch.HyperModel`: the score, to be maximized.

    Example:
    ```python
    tuner = keras_tuner.RandomSearch(kbatch.HyperModel(build, seconds_per_trial=60), objective=kbatch.objective())
    ```
    """
    return keras_tuner.Objective(OBJECTIVE, "max")


class HyperModel(keras_tuner.HyperModel):
    """Searches how to train a model: every trial gets the same seconds and is scored by the accuracy it holds.

    Use it with any stock tuner but Hyperband, with `objective=kbatch.objective()`. Before the first trial, the
    baseline (what the user has today) is trained once for the same seconds and kept beside the trials. A trial that
    runs out of memory or into NaN scores 0 and the search goes on; a bug in `build` stops it at once. Everything
    measured is appended to `records.jsonl` in the folder `kbatch` of the tuner's project; a search that was stopped or
    killed goes on where it was.

    Args:
        build: Function `build(hp)` or `build()` that returns a `keras.Model`, or a `keras_tuner.HyperModel` that does
            not override `fit`. A compiled model keeps its loss and metrics, and its optimizer is the baseline's.
        space: `Space` of recipes. Defaults to `Space()`.
        loss: Loss, if `build` does not compile.
        metrics: List of metrics, if `build` does not compile.
        metric: String, what is scored, as Keras logs it. Defaults to `"val_accuracy"`.
        direction: `"max"` or `"min"`; inferred for accuracies and AUC, else required.
        chance: Float, the metric of a model that learned nothing; inferred for accuracies (the share of the most
            frequent class in the validation labels) and AUC (0.5, of the ROC curve), else required.
        seconds_per_trial: Float, the horizon: training seconds of every trial. Without it, `search` takes
            `epochs=E`, and the horizon is what the baseline needs for so many.
        target: Float, the value that is good enough: a trial ends once it is held. Optional.
        seed: Integer, seed of weights, data order and dropout, the same for all trials. Defaults to `0`.
        max_batch: The largest micro-batch that fits: `None` (the default) lets a trial run out of memory, which scores
            0; an integer; or the table of `kbatch.max_batches`. A larger batch is reached by accumulating over equal
            passes; one that even so does not fit is recorded as out of memory without being trained. The baseline is
            trained as it is.
        max_accumulation_steps: Integer, the most passes per update that `max_batch` leads to. Defaults to `16`.

    Attributes:
        watcher: `kbatch.training.watching.Watcher` told of every training. `None` shows a progress bar, unless
            `verbose=` is passed to `search`, which then goes to Keras' `fit`.

    Raises:
        SearchError: If the tuner or an argument of `search` is not supported.

    Example:
    ```python
    tuner = keras_tuner.RandomSearch(
        kbatch.HyperModel(build, seconds_per_trial=60),
        objective=kbatch.objective(), max_trials=20, directory="runs", project_name="pets",
    )
    tuner.search(x, y, validation_data=(x_val, y_val))
    print(kbatch.results.load("runs/pets"))
    ```
    """

    def __init__(
        self,
        build: Callable[..., keras.Model] | keras_tuner.HyperModel,
        space: Space | None = None,
        loss: Any = None,
        metrics: Any = None,
        metric: str = "val_accuracy",
        direction: str | None = None,
        chance: float | None = None,
        seconds_per_trial: float | None = None,
        target: float | None = None,
        seed: int = 0,
        max_batch: int | Table | None = None,
        max_accumulation_steps: int = feasible.MOST_STEPS,
    ) -> None:
        super().__init__()
        self.space = space or Space()
        self.max_batch = feasible.check(max_batch, self.space)
        self.max_accumulation_steps = feasible.check_steps(max_accumulation_steps)
        self.seconds_per_trial = seconds_per_trial
        self.watcher: Watcher | None = None
        declare: Callable[[Any], None] = nothing
        if isinstance(build, keras_tuner.HyperModel):
            if type(build).fit is not keras_tuner.HyperModel.fit:
                raise SearchError("A HyperModel given as `build` must not override fit()", type(build).__name__, "Leave fit() out: kbatch trains")
            declare, build = build.declare_hyperparameters, build.build
        self.maker = Maker(build, CompileArguments(loss, metrics), seed, self.space.reserved, declare)
        self._judged_by = {"metric": metric, "direction": direction, "chance": chance, "target": target}
        self._attempt: Attempt | None = None
        self._holding = ExitStack()
        self._searched: Path | None = None  # while a search runs, the lock on its project
        self._goal(1.0 if seconds_per_trial is None else seconds_per_trial, _some_labels)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the axes of the space; KerasTuner calls this once, before the user's `build`."""
        with _border():
            if "KERASTUNER_ORACLE_IP" in os.environ:
                raise SearchError("A search must run in one process", "KERASTUNER_ORACLE_IP is set (chief and workers)", "Unset it")
            self.space.declare(hp)
            self.maker.declare(GuardedHyperParameters(hp, self.space.reserved))

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The user's model, compiled for the recipe that `hp` says."""
        with _border(), _let_go_if_it_fails(self):
            self._attempt = Attempt()
            recipe = self.space.recipe(hp)
            fitted = feasible.fitted(recipe, self.max_batch, self.max_accumulation_steps)
            if fitted is None:
                return self._attempt.refuse(feasible.why_not(recipe, self.max_batch, self.max_accumulation_steps))
            return self._attempt.make(self.maker, fitted, hp)

    def fit(self, hp: keras_tuner.HyperParameters, model: keras.Model, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Train the model for the horizon; KerasTuner calls this once a trial.

        Args:
            hp: Hyperparameters of the trial.
            model: What `build` returned for them.
            *args: `x` and `y`, as for Keras' `fit`.
            **kwargs: See `kbatch.training.arguments.FitArguments`.

        Returns:
            Finite floats: `score`, the metric, `train_seconds`, `examples_per_second` and `oom` (0 or 1).
        """
        with _border(), _let_go_if_it_fails(self):
            attempt = self._attempt or Attempt()
            callbacks = kwargs.pop("callbacks", None) or []
            of_trial = _only(callbacks, TunerCallback)
            checkpoint = _only(callbacks, SaveBestEpoch)
            _check_tuner(of_trial.tuner, hp)
            own = [callback for callback in callbacks if callback not in (of_trial, checkpoint)]
            with attempt.stopwatch.part("data"), attempt.stopwatch.leave_out_bytes():
                project = Project(of_trial.tuner.project_dir)
                self._hold(project, of_trial.tuner)
                comparison = self.comparison(project, *args, **kwargs, callbacks=own)
            with attempt.stopwatch.leave_out():
                comparison.baseline(project)
            drawn = self.space.recipe(hp, comparison.data.training.examples)
            recipe = feasible.fitted(drawn, self.max_batch, self.max_accumulation_steps) or drawn
            identity = Identity("search", _number(of_trial.trial), self.maker.seed, recipe, dict(hp.values), self.space.rate_at_32(recipe))
            path = Path(checkpoint.filepath)

            def train() -> Trained:
                if recipe.warmup_updates and not attempt.failure:
                    with attempt.stopwatch.part("build"):
                        self.maker.recompile(model, recipe)  # only now is the number of examples known
                trained = comparison.train(project, attempt, model, identity, [_Announce(), of_trial, checkpoint])
                return dataclasses.replace(trained, checkpoint=os.path.relpath(path, project.directory) if path.exists() else "")

            record = comparison.once(project, identity, train)
            if record.checkpoint:
                _bring(project.directory / record.checkpoint, path)
            attempt.forget()
            return _finite(record, comparison.goal)

    def _hold(self, project: Project, tuner: Any) -> None:
        """Keep other processes out of the project from the first trial on, until the tuner's search returns."""
        if self._searched == project.folder:
            return
        self._let_go()
        self._holding.enter_context(project.hold())
        self._searched = project.folder
        ended = tuner.on_search_end  # KerasTuner's own hook, which a user's tuner may have overridden

        def on_search_end() -> None:
            self._let_go()
            ended()

        self._holding.callback(setattr, tuner, "on_search_end", ended)
        tuner.on_search_end = on_search_end

    def _let_go(self) -> None:
        """Let other processes train in the project: the search has returned, or failed."""
        self._searched = None
        self._holding.close()

    def comparison(self, project: Project, *args: Any, **kwargs: Any) -> Comparison:
        """What the trainings of a project share, agreed with what it was started with.

        Use it to learn before a search whether a project can be resumed.

        Args:
            project: The project, old or new.
            *args: `x` and `y`, as for `search`.
            **kwargs: What else `search` is called with.

        Raises:
            ProjectChangedError: If the project was started with another space, data, metric, horizon or seed.
            KbatchError: If anything else cannot be used.
        """
        arguments = FitArguments.parse(args, kwargs)
        if (self.seconds_per_trial is None) == (arguments.epochs is None):
            received = "neither" if arguments.epochs is None else f"seconds_per_trial={self.seconds_per_trial} and epochs={arguments.epochs}"
            raise SearchError("A search must be given either seconds_per_trial or epochs", received, "Pass one of them")
        if arguments.epochs is not None and (not isinstance(arguments.epochs, int) or arguments.epochs < 1):
            raise SearchError("`epochs` must be a whole number of at least 1", arguments.epochs, "Pass epochs=5, say")
        data = arguments.data()
        check_sizes([*self.space.batch_size, self.space.baseline.batch_size], data)
        horizon = {"seconds_per_trial": self.seconds_per_trial, "epochs": arguments.epochs}
        project.agree({"space": self.space.to_dict(), "data": data.fingerprint, "seed": self.maker.seed, **self._judged_by, **horizon})
        self._agree_on_memory(project)
        goal = self._goal_of(project, data, arguments.epochs)
        watcher = self.watcher or (ProgressBar() if arguments.verbose is None else Watcher())
        return Comparison(self.maker, self.space, data, goal, arguments, watcher)

    def _agree_on_memory(self, project: Project) -> None:
        project.agree({"max_batch": feasible.facts(self.max_batch), "max_accumulation_steps": self.max_accumulation_steps})
        if isinstance(self.max_batch, Table) and "table" not in project.facts():
            project.agree({"table": self.max_batch.to_dict()})

    def _goal(self, seconds: float, labels: Callable[[], np.ndarray]) -> Goal:
        judged_by: dict[str, Any] = self._judged_by
        return goal_of(seconds, labels=labels, **judged_by)

    def _goal_of(self, project: Project, data: Data, epochs: int | None) -> Goal:
        stored = project.facts().get("goal")
        if stored is None:
            seconds = self.seconds_per_trial
            if seconds is None:
                assert epochs is not None
                seconds = seconds_of_epochs(project, self.maker, self.space, data, epochs)
            stored = self._goal(seconds, data.labels).to_dict()
            project.agree({"goal": stored})
        return Goal(**stored)


class _Announce(keras.callbacks.Callback):
    """Tells KerasTuner's checkpoint, at the end of an epoch, whether these weights are the ones that are kept.

    Without a number for the objective it writes the weights at every epoch.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put a score into the logs that is the best so far only at the first epoch and at the last."""
        if logs is not None:
            logs[OBJECTIVE] = 0.0 if self.model.stop_training else UNSCORED


@contextmanager
def _let_go_if_it_fails(hypermodel: HyperModel) -> Iterator[None]:
    """A search that ends by an error, or by Ctrl-C, does not return."""
    try:
        yield
    except BaseException:
        hypermodel._let_go()
        raise


@contextmanager
def _border() -> Iterator[None]:
    """Turn every error into one that KerasTuner neither swallows nor tries again."""
    try:
        yield
    except keras_tuner.errors.FatalError:
        raise
    except KbatchError as error:
        raise _fatal(type(error))(error.must, error.received, error.do) from error
    except Exception as error:
        full = disk.trouble(error)
        if full is not None:
            raise _fatal(type(full))(full.must, full.received, full.do) from error
        raise keras_tuner.errors.FatalRuntimeError(f"A trial failed, and would fail again. {type(error).__name__}: {error}") from error


def _fatal(kind: type[KbatchError]) -> type[KbatchError]:
    """The same kind of error, but one that ends a KerasTuner search."""
    return type(kind.__name__, (kind, keras_tuner.errors.FatalError), {"__module__": kind.__module__})


def _some_labels() -> np.ndarray:
    """Labels of many classes, which stand in for the real ones when the arguments are checked before there are data."""
    return np.arange(1000)


def _only(callbacks: list[Any], kind: type[Any]) -> Any:
    found = [callback for callback in callbacks if isinstance(callback, kind)]
    if len(found) != 1:
        raise SearchError("HyperModel.fit must be called by a tuner's search()", f"{len(found)} {kind.__name__}", "Without a tuner, use kbatch.train")
    return found[0]


def _check_tuner(tuner: Any, hp: keras_tuner.HyperParameters) -> None:
    """Refuse, by name, what cannot be compared fairly."""
    if "tuner/epochs" in hp.values:
        raise SearchError(
            "Every trial must get the same seconds",
            "Hyperband, which gives them different ones",
            "Use RandomSearch, BayesianOptimization or GridSearch",
        )
    if getattr(tuner, "executions_per_trial", 1) != 1:
        raise SearchError(
            "executions_per_trial must be 1: an average of ratios is no score", tuner.executions_per_trial, "Use kbatch.confirm for more seeds"
        )
    if getattr(tuner, "distribution_strategy", None) is not None:
        raise SearchError("A search must run on one device", "distribution_strategy", "Leave it out")
    wanted = tuner.oracle.objective
    if getattr(wanted, "name", None) != OBJECTIVE or wanted.direction != "max":
        raise SearchError("The tuner must maximize the score", f"objective={getattr(wanted, 'name', wanted)!r}", "Pass objective=kbatch.objective()")


def _number(trial: Any) -> int:
    """KerasTuner's trial number, which it keeps as text."""
    return int(trial.trial_id)


def _bring(kept: Path, wanted: Path) -> None:
    """Let a trial that was answered from another's record have its weights too."""
    if kept.exists() and not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, wanted)


def _finite(record: Record, goal: Goal) -> dict[str, float]:
    outcome = record.outcome
    value = goal.chance if outcome.value is None or not math.isfinite(outcome.value) else outcome.value
    return {
        OBJECTIVE: float(record.score),
        goal.metric: float(value),
        "train_seconds": float(outcome.train_seconds),
        "examples_per_second": float(outcome.examples_per_second),
        "oom": float(outcome.ended == "out_of_memory"),
    }
