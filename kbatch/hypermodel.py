"""HyperModel: the border with KerasTuner. Declares the space, builds a recipe's model, and fits it on the clock."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from keras_tuner.src.engine.tuner_utils import SaveBestEpoch, TunerCallback

from kbatch.border import Problems, border, watch_searches
from kbatch.building.compiled import CompileArguments, compiled_by_user
from kbatch.building.hyperparameters import GuardedHyperParameters
from kbatch.building.making import Maker, nothing
from kbatch.building.signature import described, signature
from kbatch.data.batches import Data
from kbatch.data.elements import inputs_of
from kbatch.device import meter
from kbatch.device.oom import is_out_of_memory
from kbatch.errors import SearchError
from kbatch.memory import feasible
from kbatch.memory.table import Table
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.record import Record
from kbatch.rules import warmup
from kbatch.space import Space
from kbatch.training import user_callbacks
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
        self._comparison: Comparison | None = None  # of the search that is running
        self._goal(1.0 if seconds_per_trial is None else seconds_per_trial, _some_labels)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the axes of the space; KerasTuner calls this once, before the user's `build`."""
        with border():
            if "KERASTUNER_ORACLE_IP" in os.environ:
                raise SearchError("A search must run in one process", "KERASTUNER_ORACLE_IP is set (chief and workers)", "Unset it")
            self.space.declare(hp)
            self.maker.declare(GuardedHyperParameters(hp, self.space.reserved))

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The user's model, compiled for the recipe that `hp` says."""
        with border():
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
        with border():
            attempt = self._attempt or Attempt()
            callbacks = kwargs.pop("callbacks", None) or []
            of_trial = _only(callbacks, TunerCallback)
            checkpoint = _only(callbacks, SaveBestEpoch)
            _check_tuner(of_trial.tuner)
            own = [callback for callback in callbacks if callback not in (of_trial, checkpoint)]
            project = Project(of_trial.tuner.project_dir)
            with attempt.stopwatch.part("data"), attempt.stopwatch.leave_out_bytes():
                comparison = self._comparison or self.comparison(project, *args, **kwargs, callbacks=user_callbacks.without_trial(own))
            with attempt.stopwatch.leave_out():
                baseline = comparison.baseline(project).outcome
            examples, horizon_examples = comparison.data.training.examples, baseline.examples_per_second * comparison.goal.seconds or None
            drawn = self.space.recipe(hp, examples, horizon_examples)
            recipe = feasible.fitted(drawn, self.max_batch, self.max_accumulation_steps) or drawn
            identity = Identity("search", _number(of_trial.trial), self.maker.seed, recipe, dict(hp.values), self.space.rate_at_32(recipe))
            path = Path(checkpoint.filepath)

            def train() -> Trained:
                announce = _Announce()
                trained = comparison.train(project, attempt, model, identity, own, [announce.before, of_trial, checkpoint, announce.after])
                outcome = _with_remark(trained.outcome, _warmup_cut(recipe, self.space.recipe(hp, examples)))
                return dataclasses.replace(trained, outcome=outcome, checkpoint=os.path.relpath(path, project.directory) if path.exists() else "")

            record = comparison.once(project, identity, train)
            if record.checkpoint:
                _bring(project.directory / record.checkpoint, path)
            attempt.forget()
            return _finite(record, comparison.goal)

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
        return self._checked(project, args, kwargs, Problems())

    def _checked(self, project: Project, args: Any, kwargs: Any, problems: Problems, tuner: Any = None) -> Comparison:
        """`comparison`, with all that is wrong said at once."""
        arguments = problems.of(lambda: FitArguments.parse(args, kwargs))
        if arguments is not None:
            problems.of(lambda: self._check_horizon(arguments))
            problems.of(_check_devices)
        model = self._default_model()
        if arguments is not None:
            schedule = model is not None and _has_schedule(compiled_by_user(model).get("optimizer"))
            problems.of(lambda: user_callbacks.check(arguments.callbacks, schedule=schedule))
            data = problems.of(lambda: arguments.data(lambda: inputs_of(model)))
            if data is not None:
                problems.of(lambda: self._check_sizes(data, tuner))
        problems.raise_all()
        horizon = {"seconds_per_trial": self.seconds_per_trial, "epochs": arguments.epochs}
        project.agree({"space": self.space.to_dict(), "data": data.fingerprint, "seed": self.maker.seed, **self._judged_by, **horizon})
        project.agree({"class_weight": described(arguments.class_weight), "device": meter.device_words()})
        if model is not None:
            project.agree({"signature": signature(model, self.maker.arguments)})
        self._agree_on_memory(project)
        goal = self._goal_of(project, data, arguments.epochs)
        watcher = self.watcher or (ProgressBar() if arguments.verbose is None else Watcher())
        return Comparison(self.maker, self.space, data, goal, arguments, watcher)

    @contextmanager
    def searching(self, tuner: Any, args: Any, kwargs: Any) -> Iterator[None]:
        """Check, before the first trial, all that a tuner's `search` is given, and prepare it once for all trials.

        Args:
            tuner: The tuner that is about to search.
            args: Positional arguments of `search`.
            kwargs: Arguments of `search` by name.

        Raises:
            KbatchError: If something cannot be used; one error lists all of it.
        """
        problems = Problems()
        problems.of(lambda: _check_tuner(tuner))
        self._comparison = self._checked(Project(tuner.project_dir), args, kwargs, problems, tuner)
        try:
            yield
        finally:
            self._comparison = None

    def _default_model(self) -> keras.Model | None:
        """The model as `build` makes it by default; `None` if memory runs out, which the trainings will find themselves."""
        try:
            return self.maker.raw(self.space.baseline.policy)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _check_horizon(self, arguments: FitArguments) -> None:
        if (self.seconds_per_trial is None) == (arguments.epochs is None):
            received = "neither" if arguments.epochs is None else f"seconds_per_trial={self.seconds_per_trial} and epochs={arguments.epochs}"
            raise SearchError("A search must be given either seconds_per_trial or epochs", received, "Pass one of them")
        if arguments.epochs is not None and (not isinstance(arguments.epochs, int) or arguments.epochs < 1):
            raise SearchError("`epochs` must be a whole number of at least 1", arguments.epochs, "Pass epochs=5, say")

    def _check_sizes(self, data: Data, tuner: Any) -> None:
        """Refuse batch sizes above the data; those that stand in the space by default are left out of the search instead."""
        sizes = list(self.space.batch_size)
        if tuner is not None and self.space.default_sizes:
            sizes = [size for size in sizes if size <= data.training.examples]
            left_out = [size for size in self.space.batch_size if size not in sizes]
            if sizes and left_out:
                _narrow(tuner, sizes)
                warnings.warn(
                    f"Batch sizes {', '.join(map(str, left_out))} are left out: there are {data.training.examples} training examples.", stacklevel=2
                )
        check_sizes([*sizes, self.space.baseline.batch_size], data)

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


class _Announce:
    """Tells KerasTuner's checkpoint, at the end of an epoch, whether these weights are the ones that are kept.

    Without a number for the objective it writes the weights at every epoch. Put its two callbacks around the checkpoint; nobody else sees the number.
    """

    def __init__(self) -> None:
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._say)
        self.after = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.pop(OBJECTIVE, None))

    def _say(self, epoch: int, logs: dict[str, float]) -> None:
        """Put a score into the logs that is the best so far only at the first epoch and at the last."""
        logs[OBJECTIVE] = 0.0 if self.before.model.stop_training else UNSCORED


def _some_labels() -> np.ndarray:
    """Labels of many classes, which stand in for the real ones when the arguments are checked before there are data."""
    return np.arange(1000)


def _only(callbacks: list[Any], kind: type[Any]) -> Any:
    found = [callback for callback in callbacks if isinstance(callback, kind)]
    if len(found) != 1:
        raise SearchError("HyperModel.fit must be called by a tuner's search()", f"{len(found)} {kind.__name__}", "Without a tuner, use kbatch.train")
    return found[0]


def _check_tuner(tuner: Any) -> None:
    """Refuse, by name, what cannot be compared fairly."""
    if isinstance(tuner.oracle, keras_tuner.oracles.HyperbandOracle):
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
    overriding = [name for name in ("optimizer", "loss", "metrics") if getattr(tuner, name, None)]
    if overriding:
        instead = "Leave them out of the tuner: the optimizer is an axis of Space, loss and metrics belong into compile() or kbatch.HyperModel"
        raise SearchError("A tuner must not compile the models again", ", ".join(f"{name}=" for name in overriding), instead)
    wanted = tuner.oracle.objective
    if getattr(wanted, "name", None) != OBJECTIVE or wanted.direction != "max":
        raise SearchError("The tuner must maximize the score", f"objective={getattr(wanted, 'name', wanted)!r}", "Pass objective=kbatch.objective()")


def _check_devices() -> None:
    if tf.distribute.has_strategy():
        raise SearchError("A search must run on one device", "a tf.distribute strategy's scope", "Call search outside of the scope")


def _has_schedule(optimizer: Any) -> bool:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(getattr(inner, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)


def _narrow(tuner: Any, sizes: list[int]) -> None:
    """Take batch sizes out of a space that the tuner has declared, before it draws."""
    for axis in tuner.oracle.hyperparameters.space:
        if axis.name == "batch_size" and isinstance(axis, keras_tuner.engine.hyperparameters.Choice):
            axis._values = sizes
            axis._default = axis._default if axis._default in sizes else sizes[-1]


def _warmup_cut(recipe: Recipe, uncut: Recipe) -> str:
    if recipe.warmup_updates >= uncut.warmup_updates:
        return ""
    return f"warm-up was cut from {uncut.warmup_updates} to {recipe.warmup_updates} updates, {warmup.MOST_OF_HORIZON:.0%} of the horizon"


def _with_remark(outcome: Outcome, remark: str) -> Outcome:
    return dataclasses.replace(outcome, remarks=(*outcome.remarks, remark)) if remark else outcome


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


watch_searches(HyperModel, HyperModel.searching)
