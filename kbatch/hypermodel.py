"""The hypermodel: KerasTuner builds and trains the recipes of a search through it."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import keras_tuner

from kbatch.callbacks import user_callbacks
from kbatch.checks import arguments, catalogue
from kbatch.errors import Problems, SearchError, in_one_frame
from kbatch.memory import _micro_batch
from kbatch.memory._max_batch import Table
from kbatch.model_spec import ModelArguments, ModelSpec, shows
from kbatch.models import maker as models_maker
from kbatch.models.compilation import lacking
from kbatch.models.losses import check_smoothed_metric
from kbatch.models.maker import ModelMaker, compilable, described
from kbatch.models.preprocessor import put_back
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED
from kbatch.records.at_most_once import Job
from kbatch.records.project import Project
from kbatch.runtime import device, garbage, keras_tuner_private, users_code
from kbatch.search import tuner_border
from kbatch.search.tuner_border import BUILD, border, called_by_a_tuner, watch_searches
from kbatch.space import Space
from kbatch.standin.own_fit import Batch, OwnFit
from kbatch.training import tensorboard
from kbatch.training import trial as training_trial
from kbatch.training.goal import horizon_of, judged_by
from kbatch.training.progress import Forecast, Watcher
from kbatch.training.search import IDLE, Search, check_space
from kbatch.training.terms import (
    FACT,
    PreparedSearch,
    Remembered,
    Terms,
    completed_arguments,
    facts_of,
)
from kbatch.training.trial import Checkpoint, Trial, largest_bytes
from kbatch.training.workers import Executor, LocalExecutor

if TYPE_CHECKING:
    from typing_extensions import Unpack


def objective() -> keras_tuner.Objective:
    """Return the objective of a search with `kbatch.HyperModel`: the score, to be maximized.

    Every tuner that is given a `kbatch.HyperModel` needs it.

    Returns:
        A `keras_tuner.Objective`.

    Example:
    ```python
    hypermodel = kbatch.HyperModel(build, seconds_per_trial=60)
    tuner = keras_tuner.RandomSearch(hypermodel, objective=kbatch.objective())
    ```
    """
    return keras_tuner.Objective(tuner_border.OBJECTIVE, "max")


class HyperModel(keras_tuner.HyperModel):
    """A hypermodel whose trials train for the same seconds, and score by the accuracy they hold.

    Use it with any stock tuner, with `objective=kbatch.objective()`. Before the first
    trial, the baseline (today's way of training) is trained once for the same seconds. A trial that
    runs out of memory or into NaN scores 0 and the search goes on; a bug in `build` stops it at
    once. All measurements are appended to `records.jsonl` in the folder `kbatch` of the tuner's
    project. A search that was stopped or killed goes on where it was.

    Args:
        build: Function `build(hp)` or `build()` that returns a `keras.Model`, or a
            `keras_tuner.HyperModel`, or a `kbatch.ModelSpec`. A compiled model keeps its loss and
            metrics, and its optimizer is the baseline's. A `fit` of the hypermodel's own is run up
            to its call of `model.fit`: data and callbacks are what it passes there, and the
            hyperparameter that it passes as batch size is the axis of batch sizes.
        space: `Space` of recipes. Defaults to `Space()`.
        metric: String, the scored metric, as Keras logs it. Defaults to `"val_accuracy"`.
        direction: `"max"` or `"min"`; inferred for metrics and losses of Keras' own, else required.
        chance: Float, the metric of a model that learned nothing. Defaults to what the metric
            itself gives for the best constant answer on the validation labels, such as the share
            of the most frequent class. Required where that cannot be measured.
        seconds_per_trial: Float, the horizon: training seconds of every trial. Without it, `search`
            takes `epochs=E`, and the horizon is the time of so many epochs of the baseline.
        target: Float, the value that is good enough: a trial ends once it is held. Optional.
        max_batch: The largest micro-batch that fits: an integer, or the table of
            `kbatch.max_batches`. A larger batch is reached by accumulating over equal passes. If
            that does not fit either, the trial is recorded as out of memory without being trained.
            Of several devices, it is the limit of each.
            With `None` (the default) a trial may run out of memory. The baseline is trained as it
            is.
        max_accumulation_steps: Integer, the largest number of passes per update that `max_batch`
            leads to. Defaults to `16`.
        isolated: Boolean, whether each training is made in a worker process, which may die and is
            renewed before it grows. Data and callbacks must travel there. Defaults to `False`.
        **arguments: `loss`, `metrics`, `seed`, `values` and `declare`; see `kbatch.ModelSpec`. All
            trials have this seed but those that repeat a recipe (see `kbatch.Tuner`). `values` are
            those that the hyperparameters of `build` have today: a mapping, a
            `keras_tuner.HyperParameters`, a tuner (its best), or its folder. The baseline is built
            with them, and kbatch's own search begins there.

    Attributes:
        watcher: A `kbatch.training.progress.Watcher` that is told of every training. `None` shows a
            progress bar, unless `verbose=` is passed to `search`, which then goes to Keras' `fit`.

        reuse_traces: Boolean, whether trainings of the same graph share its compiled steps, which
            changes no number. Only graphs that Keras' own classes make are shared. Set it to
            `False` before the search for a trace of each training's own.

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

    @in_one_frame
    @shows(ModelSpec)
    def __init__(
        self,
        build: Callable[..., keras.Model] | keras_tuner.HyperModel | ModelSpec,
        space: Space | None = None,
        *,
        metric: str = "val_accuracy",
        direction: str | None = None,
        chance: float | None = None,
        seconds_per_trial: float | None = None,
        target: float | None = None,
        max_batch: int | Table | None = None,
        max_accumulation_steps: int = _micro_batch.MOST_STEPS,
        isolated: bool = False,
        **arguments: Unpack[ModelArguments],
    ) -> None:
        super().__init__()
        space = Space() if space is None else space
        check_space(space)
        space = _micro_batch.of_table(space, max_batch)
        check_smoothed_metric(metric, space.label_smoothing)
        self._own_fit = OwnFit.of(build)
        if self._own_fit is not None:
            arguments.setdefault("declare", self._own_fit.declare)
            build = self._own_fit.build
        spec = ModelSpec.of(build, **arguments)
        space = tuner_border.with_batch_of(space, spec.values)
        self.terms = Terms(
            model_maker=ModelMaker.of(spec, space.reserved),
            space=space,
            judged_by=judged_by(metric, direction, chance, target),
            seconds_per_trial=None if seconds_per_trial is None else horizon_of(seconds_per_trial),
            max_batch=_micro_batch.check(max_batch, space),
            max_accumulation_steps=_micro_batch.check_steps(max_accumulation_steps),
        )
        self.watcher: Watcher | None = None
        self._trial: Trial | None = None
        # by trial: how often it was trained before, of `executions_per_trial`
        self._executions: dict[int, Iterator[int]] = defaultdict(itertools.count)
        # today's values of hyperparameters of `build` with the name of an axis
        self.of_axes: dict[str, Any] = {}
        self.running: Search | None = None
        self.prepared = PreparedSearch(self.terms)
        self.remembered: Remembered | None = None
        if not isinstance(isolated, bool):
            raise SearchError(
                "`isolated` must be True or False", repr(isolated), "Pass isolated=True, say"
            )
        if isolated:
            self.train_in(LocalExecutor(workers=1))

    @property
    def space(self) -> Space:
        """The space of recipes."""
        return self.terms.space

    @property
    def reuse_traces(self) -> bool:
        """Whether trainings of the same graph share its compiled steps."""
        return self.terms.reuse_traces

    @reuse_traces.setter
    def reuse_traces(self, reuse: bool) -> None:
        if not isinstance(reuse, bool):
            raise SearchError(
                "`reuse_traces` must be True or False", repr(reuse), "Set it to False, say"
            )
        self._replace(reuse_traces=reuse)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the axes of the space; KerasTuner calls this once, before the user's `build`."""
        with border():
            tuner_border.check_one_process()
            self._settle_xla()
            self._take_up(hp)
            self._settle_batch()
            self.space.declare(hp)
            maker = self.terms.model_maker
            maker.declare(maker.guarded(hp))

    def _take_up(self, hp: keras_tuner.HyperParameters) -> None:
        """Build the baseline with the values that the tuner's `hyperparameters=` says."""
        maker, size = self.terms.model_maker, tuner_border.fixed_batch_size(hp)
        if size is not None and self.space.default_sizes:
            self._take_batch(Batch(size, None, (), ()))
        values = {**tuner_border.said_by(hp, self.space.reserved), **maker.today}
        if values != maker.today:
            self._replace(model_maker=maker.with_values(values))

    def _settle_xla(self) -> None:
        """Leave XLA out of a default space if it cannot compile the model."""
        space = compilable(self.space, self.terms.model_maker)
        if space != self.space:
            self._replace(space=space)

    def _settle_batch(self) -> None:
        """Take the batch sizes of a `fit` of the user's own, if it tells them without data."""
        if self._own_fit is None:
            return
        try:
            batch = self._own_fit.batch(self.terms.model_maker.today)
        except Exception:  # it looks at the data: `searching` asks again, and raises
            return
        self._take_batch(batch)

    def _take_batch(self, batch: Batch) -> None:
        """Let today's batch size be the baseline's, and the sizes of `fit` those of the space."""
        baseline, sizes = (
            self.space.baseline,
            None if self.space.default_sizes else self.space.batch_size,
        )
        if baseline.batch_size == Recipe().batch_size:
            baseline = dataclasses.replace(baseline, batch_size=batch.today)
        if self.space.default_sizes and batch.name is not None:
            sizes = batch.sizes
        space = dataclasses.replace(self.space, baseline=baseline, batch_size=sizes)
        if space != self.space:
            self._replace(space=space)

    def _of_own_fit(self, own_fit: OwnFit, tuner: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the arguments of the search: what a `fit` of the user's own gives `model.fit`."""
        values = self.terms.model_maker.today
        batch = own_fit.batch(values, args, kwargs)
        self._take_batch(batch)
        tuner_border.set_sizes(tuner, self.space.batch_size)
        if batch.others:
            users_code.warn(
                f"The hyperparameters {', '.join(batch.others)} of fit() stay as they are today: "
                "kbatch searches those of build(), and its own axes."
            )
        return own_fit.arguments(values, args, kwargs)

    def train_for(self, seconds: float) -> None:
        """Let each trial train for so many seconds."""
        self._replace(seconds_per_trial=horizon_of(seconds))

    def train_in(self, executor: Executor) -> None:
        """Let an executor's workers make the trainings from now on."""
        self._replace(executor=executor)
        device.leave_gpus_to_workers()

    def _replace(self, **changed: Any) -> None:
        self.terms = dataclasses.replace(self.terms, **changed)
        self.prepared = PreparedSearch(self.terms)

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Build the user's model, compiled for the recipe of `hp`; tuners call this.

        A model does not hold the parts of a recipe that concern training, such as the batch size.
        Outside of a search a warning lists them: use `kbatch.train` with
        `kbatch.best_recipe(tuner)`.
        """
        with border(BUILD):
            self._trial = Trial()
            tuner_border.begin_anew(hp)
            tuner_border.check_declared(hp, self.space)
            recipe = self.space.recipe(hp)
            fitted = self.terms.fitted(recipe)
            if not called_by_a_tuner():
                words = lacking(fitted or recipe, self.space.drawn(hp)["warmup_passes"])
                users_code.warn(words)
            if fitted is None:
                return self._trial.refuse(self.terms.why_not(recipe))
            if self.running is not None:
                fitted = self.running.settled(fitted)
                if self.terms.executor is not None:
                    return self._trial.leave_to_worker()
            model = self._trial.make(
                training_trial.maker_of_repeat(self.terms.model_maker, hp), fitted, hp
            )
            self.of_axes |= models_maker.values_of_axes(hp)
            if self.running is None:
                put_back(model)
            return model

    def fit(
        self, hp: keras_tuner.HyperParameters, model: keras.Model, *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """Train the model for the horizon; KerasTuner calls this once a trial.

        Args:
            hp: Hyperparameters of the trial.
            model: Model that `build` returned for them.
            *args: `x` and `y`, as for Keras' `fit`.
            **kwargs: See `kbatch.training.arguments.FitArguments`.

        Returns:
            Finite floats: `score`, all metrics on validation data, `train_seconds`,
            `examples_per_second` and `oom` (0 or 1).
        """
        with border():
            trial = self._trial or Trial()
            trial.model = model
            callbacks = kwargs.pop("callbacks", None) or []
            of_trial = tuner_border.only(callbacks, keras_tuner_private.tuner_callback())
            saving = tuner_border.only(callbacks, keras_tuner_private.save_best_epoch())
            tuner_border.check(of_trial.tuner)
            own = [callback for callback in callbacks if callback not in (of_trial, saving)]
            with tuner_border.scope(of_trial.tuner):  # KerasTuner enters it for `build` alone
                with trial.part("data"), trial.leave_out_bytes():
                    known = {**kwargs, "callbacks": user_callbacks.without_trial(own)}
                    search = self.running or self._open(of_trial.tuner, args, known)
                number = tuner_border.number(of_trial.trial)
                if self.running is not None:  # `searching` kept TensorBoard from KerasTuner
                    own = user_callbacks.with_boards(own, search.arguments.callbacks, str(number))
                first = self._job(search, hp, trial, number)
                job = training_trial.execution_of(first, next(self._executions[number]))
                maker = dataclasses.replace(self.terms.model_maker, seed=job.seed)
                another = job != first and self.terms.executor is None  # else a worker makes it
                # a shared model was compiled for the baseline meanwhile
                if another or maker.start.is_one(model):
                    trial.make(maker, job.recipe, hp)
                announce = tuner_border.Announcement()
                written = [announce.before, of_trial, saving, announce.after]
                path = Path(saving.filepath).resolve()  # for a worker elsewhere
                checkpoint = Checkpoint(path, written, largest_bytes(model))
                ask = tuner_border.question(of_trial, search.goal, search.baseline())
                made = trial.model
                record = search.train(job, trial, own, checkpoint, ask=ask)
                if made is not None and made.built and not model.built:
                    model.build_from_config(made.get_build_config())  # which KerasTuner keeps
                tuner_border.declare(hp, trial.declared)
                tuner_border.tell(of_trial, search.goal, record)
                tuner_border.name_values(hp, self.of_axes)
                if record.checkpoint:
                    tuner_border.bring(search.project.directory, record.checkpoint, path)
                return search.goal.logs(record.outcome, record.score)

    def _job(self, search: Search, hp: Any, trial: Trial, number: int) -> Job:
        """The training of a trial; the baseline is trained before the first one."""
        with trial.leave_out():
            drawn, remarks = search.drawn(hp)
        recipe = search.settled(self.terms.fitted(drawn) or drawn)
        rate = self.space.rate_at_32(recipe)
        job = training_trial.job_of_repeat(
            hp, self.terms.model_maker, number, recipe, rate, remarks
        )
        return search.without_idle(job)

    @contextmanager
    def searching(self, tuner: Any, args: Any, kwargs: Any) -> Iterator[dict[str, Any]]:
        """Check the arguments of a tuner's `search`, and prepare the data once for all trials.

        The context gives the arguments by name that are left for KerasTuner.

        Args:
            tuner: The tuner that is about to search.
            args: Positional arguments of `search`.
            kwargs: Arguments of `search` by name.

        Raises:
            KbatchError: If something cannot be used; one error lists all of it.
        """
        device.check_outside_strategy()
        project = Project(tuner.project_dir)
        with project.hold():
            with tuner_border.scope(tuner):
                given = {**dict(zip(("x", "y"), args, strict=False)), **kwargs}
                if self._own_fit is not None:
                    given = self._of_own_fit(self._own_fit, tuner, args, kwargs)
                elif given.get("batch_size") is not None:
                    self._take_batch(Batch(given.pop("batch_size"), None, (), ()))
                given |= tuner_border.epochs_of_search(tuner, self.terms.seconds_per_trial)
                search = self._open(tuner, (), completed_arguments(self.remembered, project, given))
                self.remembered = Remembered.of(project, search.arguments)
                if FACT not in project.facts():
                    project.agree({FACT: facts_of(search.arguments)})
                examples = search.data.training.examples
                sizes = self.space.batch_size
                tuner_border.begin_at(
                    tuner,
                    self.space,
                    search.baseline_recipe,
                    self.terms.fitted,
                    search.own_values,
                    self._default_recipe(search),
                )
                tuner_border.narrow(tuner, sizes, self.terms.sizes_that_fit(examples), examples)
                if not project.store.records():
                    self._tell_of_values(search, tuner.oracle.get_space().space)
            self._executions.clear()
            self.running = tensorboard.shown_search(search, tuner_border.declared(tuner))
            self._forecast(tuner, self.running)
            left = {"callbacks": user_callbacks.without_boards(search.arguments.callbacks)}
            try:
                with garbage.frozen():
                    yield {**kwargs, **left}
            finally:
                self.running = None
                search.trainer.close()

    def _default_recipe(self, search: Search) -> Recipe:
        """The default recipe, of batch 32 and Adam, in the precision of the baseline."""
        own = search.project.facts().get("signature", {}).get("optimizer")
        baseline, default = search.baseline_recipe, Recipe()
        kept = {name: getattr(baseline, name) for name in ("policy", "augmentation", "jit_compile")}
        if own is not None and own == described(keras.optimizers.Adam(default.learning_rate)):
            kept |= {"optimizer": COMPILED, "learning_rate": None}  # the same by another name
        return dataclasses.replace(default, **kept)

    def _forecast(self, tuner: Any, search: Search) -> None:
        """Tell the watcher how long the search takes."""
        records = search.project.store.records()
        ahead = tuner_border.ahead(tuner, search.goal.seconds, records, self.terms.workers)
        forecast = Forecast(ahead, records, tuner_border.ends_in(tuner))
        search.watcher.begins(forecast, ahead.parts)

    def _tell_of_values(self, search: Search, axes: Any) -> None:
        """Warn of own hyperparameters that nobody chose, and of those that trials do not use."""
        unsaid = (
            search.project.facts()[catalogue.FACT]
            .get(arguments.OWN_VALUES_NAME, {})
            .get("sentence")
        )
        if unsaid:
            users_code.warn(f"The baseline has {unsaid}.")
        if self.of_axes:
            users_code.warn(models_maker.of_axes_sentence(self.of_axes))
        names: tuple[str, ...] = ()
        if COMPILED not in self.space.optimizer:
            names = models_maker.idle(self.terms.model_maker, self.space.baseline.policy, axes)
        if names:
            users_code.warn(models_maker.idle_sentence(names, search.own_values))
        search.project.note({IDLE: list(names)})

    def _open(self, tuner: Any, args: Any, kwargs: Any) -> Search:
        problems, project = Problems(), Project(tuner.project_dir)
        problems.of(lambda: tuner_border.check(tuner))
        if self.terms.executor is not None:
            problems.of(lambda: tuner_border.check_isolated(tuner))
        prepared = self.prepared.matching(project, args, kwargs, self.watcher)
        if prepared is None:
            return self.terms.open(project, args, kwargs, self.watcher, problems)
        problems.raise_all()
        return prepared


watch_searches(HyperModel, HyperModel.searching)
