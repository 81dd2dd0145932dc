"""HyperModel: the border with KerasTuner. Declares the space, builds a recipe's model, and fits it on the clock."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import tensorflow as tf
from keras_tuner.src.engine.tuner_utils import SaveBestEpoch, TunerCallback

from kbatch import tuner as keras_tuners
from kbatch.border import Problems, border, called_by_a_tuner, watch_searches
from kbatch.building.compiled import CompileArguments, compiled_by_user, lacking, said_of
from kbatch.building.hyperparameters import GuardedHyperParameters, parts_of
from kbatch.building.idle import idle
from kbatch.building.making import Maker
from kbatch.building.signature import described, signature
from kbatch.building.smoothing import check_metric
from kbatch.data import augmentation
from kbatch.data.batches import Data
from kbatch.data.elements import inputs_of
from kbatch.device import meter
from kbatch.device.oom import is_out_of_memory
from kbatch.errors import SearchError, SpaceError
from kbatch.memory import feasible
from kbatch.memory.table import Table
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe, whole_number
from kbatch.records import disk
from kbatch.records.record import Record
from kbatch.rules import warmup
from kbatch.space import Space
from kbatch.training import agreement, user_callbacks
from kbatch.training.arguments import FitArguments
from kbatch.training.attempt import Attempt
from kbatch.training.comparison import Comparison, seconds_of_epochs
from kbatch.training.goal import Goal, goal_of, horizon_of, judged_by
from kbatch.training.metrics import Measured
from kbatch.training.project import Identity, Project, Trained
from kbatch.training.running import check_sizes
from kbatch.training.watching import ProgressBar, Watcher


def objective() -> keras_tuner.Objective:
    """The objective of a search with `kbatch.HyperModel`: the score, to be maximized.

    Example:
    ```python
    tuner = keras_tuner.RandomSearch(kbatch.HyperModel(build, seconds_per_trial=60), objective=kbatch.objective())
    ```
    """
    return keras_tuner.Objective(keras_tuners.OBJECTIVE, "max")


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
        self.space = Space() if space is None else space
        if not isinstance(self.space, Space):
            raise SpaceError("`space` must be a Space", space, "Pass kbatch.Space(batch_size=(32, 64)), say")
        unknown = [name for name in self.space.augmentation if name not in augmentation.names()]
        if unknown:
            known = ", ".join(augmentation.names())
            raise SpaceError(f"`augmentation` must be among {known}", ", ".join(unknown), "Register it first with kbatch.register_augmentation")
        self.max_batch = feasible.check(max_batch, self.space)
        self.max_accumulation_steps = feasible.check_steps(max_accumulation_steps)
        self.seconds_per_trial = None if seconds_per_trial is None else horizon_of(seconds_per_trial)
        self.watcher: Watcher | None = None
        function, declare = parts_of(build)
        self.maker = Maker(function, CompileArguments(loss, metrics), seed, self.space.reserved, declare)
        self._judged_by = judged_by(metric, direction, chance, target)
        check_metric(metric, self.space.label_smoothing)
        self._attempt: Attempt | None = None
        self._comparison: Comparison | None = None  # of the search that is running

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the axes of the space; KerasTuner calls this once, before the user's `build`."""
        with border():
            if "KERASTUNER_ORACLE_IP" in os.environ:
                raise SearchError("A search must run in one process", "KERASTUNER_ORACLE_IP is set (chief and workers)", "Unset it")
            self.space.declare(hp)
            self.maker.declare(GuardedHyperParameters(hp, self.space.reserved))

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The user's model, compiled for the recipe that `hp` says.

        For a tuner. A model does not hold what a recipe says of its training, so that outside of a search this warns
        of what is lacking; use `kbatch.train` with `kbatch.best_recipe(tuner)`.
        """
        with border():
            self._attempt = Attempt()
            recipe = self.space.recipe(hp)
            fitted = feasible.fitted(recipe, self.max_batch, self.max_accumulation_steps)
            if not called_by_a_tuner():
                warnings.warn(lacking(fitted or recipe, self.space.drawn(hp)["warmup_passes"]), UserWarning, stacklevel=3)  # KerasTuner wraps this
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
            of_trial = keras_tuners.only(callbacks, TunerCallback)
            checkpoint = keras_tuners.only(callbacks, SaveBestEpoch)
            keras_tuners.check(of_trial.tuner)
            own = [callback for callback in callbacks if callback not in (of_trial, checkpoint)]
            project = Project(of_trial.tuner.project_dir)
            with attempt.stopwatch.part("data"), attempt.stopwatch.leave_out_bytes():
                comparison = self._comparison or self.comparison(project, *args, **kwargs, callbacks=user_callbacks.without_trial(own))
            with attempt.stopwatch.leave_out():
                baseline = comparison.baseline(project).outcome
            examples, horizon_examples = comparison.data.training.examples, baseline.examples_per_second * comparison.goal.seconds or None
            drawn = self.space.recipe(hp, examples, horizon_examples)
            recipe = feasible.fitted(drawn, self.max_batch, self.max_accumulation_steps) or drawn
            identity = Identity(
                "search", keras_tuners.number(of_trial.trial), self.maker.seed, recipe, dict(hp.values), self.space.rate_at_32(recipe)
            )
            path = Path(checkpoint.filepath)

            def train() -> Trained:
                disk.check_room(project.directory, _most_bytes(model))
                announce = keras_tuners.Announcement()
                trained = comparison.train(project, attempt, model, identity, own, [announce.before, of_trial, checkpoint, announce.after])
                outcome = _with_remark(trained.outcome, _warmup_cut(recipe, self.space.recipe(hp, examples)))
                return dataclasses.replace(trained, outcome=outcome, checkpoint=os.path.relpath(path, project.directory) if path.exists() else "")

            record = comparison.once(project, identity, train)
            if record.checkpoint:
                keras_tuners.bring(project.directory / record.checkpoint, path)
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
                if model is not None:
                    problems.of(lambda: agreement.check(model, said_of(model, self.maker.arguments).get("loss"), data))
        problems.raise_all()
        epochs = None if arguments.epochs is None else whole_number(arguments.epochs)
        horizon = {"seconds_per_trial": self.seconds_per_trial, "epochs": epochs}
        project.agree({"space": self.space.to_dict(), "data": data.fingerprint, "seed": self.maker.seed, **self._judged_by, **horizon})
        project.agree({"class_weight": described(arguments.class_weight), "device": meter.device_words()})
        if model is not None:
            project.agree({"signature": signature(model, self.maker.arguments)})
        self._agree_on_memory(project)
        goal = self._goal_of(project, data, epochs, model)
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
        project, problems = Project(tuner.project_dir), Problems()
        problems.of(lambda: keras_tuners.check(tuner))
        with project.hold():
            self._comparison = self._checked(project, args, kwargs, problems, tuner)
            if "compiled" not in self.space.optimizer and not project.store.records():
                self._warn_of_idle(tuner)
            try:
                yield
            finally:
                self._comparison = None

    def _warn_of_idle(self, tuner: Any) -> None:
        names = idle(self.maker, self.space.baseline.policy, tuner.oracle.get_space().space)
        if names:
            warnings.warn(
                f"The hyperparameters {', '.join(names)} of `build` have no effect: kbatch replaces the optimizer and searches its rate as "
                'learning_rate_sgd and learning_rate_adam. Take them out of `build`, or search Space(optimizer="compiled").',
                stacklevel=2,
            )

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
        if arguments.epochs is not None and whole_number(arguments.epochs) is None:
            raise SearchError("`epochs` must be a whole number of at least 1", arguments.epochs, "Pass epochs=5, say")

    def _check_sizes(self, data: Data, tuner: Any) -> None:
        """Refuse batch sizes above the data; those that stand in the space by default are left out of the search instead."""
        sizes = list(self.space.batch_size)
        if self.space.default_sizes:
            sizes = [size for size in sizes if size <= data.training.examples]
            left_out = [size for size in self.space.batch_size if size not in sizes]
            if sizes and left_out and tuner is not None:
                keras_tuners.narrow(tuner, sizes)
                warnings.warn(
                    f"Batch sizes {', '.join(map(str, left_out))} are left out: there are {data.training.examples} training examples.", stacklevel=2
                )
        check_sizes([*sizes, self.space.baseline.batch_size], data)

    def _agree_on_memory(self, project: Project) -> None:
        project.agree({"max_batch": feasible.facts(self.max_batch), "max_accumulation_steps": self.max_accumulation_steps})
        if isinstance(self.max_batch, Table) and "table" not in project.facts():
            project.agree({"table": self.max_batch.to_dict()})

    def _goal_of(self, project: Project, data: Data, epochs: int | None, model: keras.Model | None) -> Goal:
        stored = project.facts().get("goal")
        if stored is None:
            seconds = self.seconds_per_trial
            if seconds is None:
                assert epochs is not None
                seconds = seconds_of_epochs(project, self.maker, self.space, data, epochs)
            stored = goal_of(seconds, data=data, measured=Measured(model, self.maker.arguments), **self._judged_by).to_dict()
            project.agree({"goal": stored})
        return Goal(**stored)


def _most_bytes(model: keras.Model) -> int:
    """What the kept weights may take on the disk: two slots of an optimizer beside each weight, and a little around them."""
    return 3 * sum(math.prod(variable.shape) * 4 for variable in model.variables) + (1 << 20)


def _check_devices() -> None:
    if tf.distribute.has_strategy():
        raise SearchError("A search must run on one device", "a tf.distribute strategy's scope", "Call search outside of the scope")


def _has_schedule(optimizer: Any) -> bool:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(getattr(inner, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)


def _warmup_cut(recipe: Recipe, uncut: Recipe) -> str:
    if recipe.warmup_updates >= uncut.warmup_updates:
        return ""
    return f"warm-up was cut from {uncut.warmup_updates} to {recipe.warmup_updates} updates, {warmup.MOST_OF_HORIZON:.0%} of the horizon"


def _with_remark(outcome: Outcome, remark: str) -> Outcome:
    return dataclasses.replace(outcome, remarks=(*outcome.remarks, remark)) if remark else outcome


def _finite(record: Record, goal: Goal) -> dict[str, float]:
    outcome = record.outcome
    value = goal.chance if outcome.value is None or not math.isfinite(outcome.value) else outcome.value
    return {
        keras_tuners.OBJECTIVE: float(record.score),
        goal.metric: float(value),
        "train_seconds": float(outcome.train_seconds),
        "examples_per_second": float(outcome.examples_per_second),
        "oom": float(outcome.ended == "out_of_memory"),
    }


watch_searches(HyperModel, HyperModel.searching)
