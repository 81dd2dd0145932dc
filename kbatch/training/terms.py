"""Terms: what a search was asked for, checked, prepared, and remembered for later calls."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import keras

from kbatch import space as spaces
from kbatch.callbacks import user_callbacks
from kbatch.checks import catalogue
from kbatch.checks.check import Found, Subject
from kbatch.data import augmentation
from kbatch.data.streams import inputs_of
from kbatch.data.validation import Data
from kbatch.errors import Problems, SearchError
from kbatch.memory import _micro_batch
from kbatch.memory._max_batch import Table
from kbatch.models import losses, replicas
from kbatch.models.compilation import said_of
from kbatch.models.losses import check_smoothing
from kbatch.models.maker import ModelMaker, check_known_values, described, own_values, signature
from kbatch.models.preprocessor import preprocess_of
from kbatch.models.traces import Traces
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.recipe_words import whole_number
from kbatch.records.project import Project
from kbatch.rules import scaling
from kbatch.runtime import device, device_memory
from kbatch.runtime.keras_private import compiled_by_user, has_schedule
from kbatch.runtime.oom import is_out_of_memory
from kbatch.space import Space
from kbatch.training import arguments, checks
from kbatch.training import arguments as training_arguments
from kbatch.training import workers as training_workers
from kbatch.training.arguments import FitArguments
from kbatch.training.goal import goal_of
from kbatch.training.metrics import ModelMetrics
from kbatch.training.progress import Watcher, bars_of
from kbatch.training.search import VALUES, Search, baseline_job, baseline_recipe, seconds_of_epochs
from kbatch.training.trial import LocalTrainer, Trainer
from kbatch.training.workers import Executor, IsolatedTrainer


@dataclass(frozen=True)
class Terms:
    """The values that all trainings of a search share before its data are known."""

    model_maker: ModelMaker
    space: Space
    # metric, direction, chance and target, as `goal.judged_by` checked them
    judged_by: Mapping[str, Any]
    seconds_per_trial: float | None  # the horizon, or `None` if `search` is given epochs
    # the largest micro-batch that fits: an integer, a `Table`, or `None`
    max_batch: int | Table | None
    max_accumulation_steps: int  # the largest number of passes per update that `max_batch` leads to
    # `Executor` whose workers make the trainings; `None` for this process
    executor: Executor | None = None
    reuse_traces: bool = True  # whether trainings of one graph share its compiled steps

    @property
    def workers(self) -> int:
        """Integer, how many trainings are made at once."""
        return 1 if self.executor is None else self.executor.workers

    def fitted(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe with a micro-batch that fits into memory; `None` if none does."""
        return _micro_batch.fitted(
            recipe, self.max_batch, self.max_accumulation_steps, device.replicas()
        )

    def why_not(self, recipe: Recipe) -> str:
        """Return the sentence for a recipe that does not fit."""
        return _micro_batch.why_not(
            recipe, self.max_batch, self.max_accumulation_steps, device.replicas()
        )

    def open(
        self,
        project: Project,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        watcher: Watcher | None = None,
        problems: Problems | None = None,
    ) -> Search:
        """Open the search of these terms, with the arguments of a tuner's `search`.

        Data are prepared and checksummed, the model is made once, and all facts are compared with
        the project's.
        """
        device_memory.tell_of_unused_card()
        problems = problems or Problems()
        arguments: FitArguments | None = problems.of(lambda: FitArguments.parse(args, kwargs))
        hp = self.model_maker.hyperparameters()
        model, data = self.default_model(hp), None
        problems.of(lambda: self._check_values(hp))
        if arguments is not None:
            data = self._checked(arguments, model, problems)
        problems.raise_all()
        # Without problems both are there.
        arguments, data = cast(FitArguments, arguments), cast(Data, data)
        found = [] if model is None else self._found(arguments, data, problems)
        problems.raise_all()
        if VALUES in project.facts() or not project.store.records():
            project.agree({VALUES: own_values(hp)})
        self._agree(project, arguments, model, data)
        project.note({catalogue.FACT: catalogue.facts(found)})
        goal = self._goal_of(project, data, arguments, model)
        own = bars_of(self.workers) if arguments.verbose is None else Watcher()
        shared = (project, self.model_maker, self.space, data, goal, arguments)
        return Search(*shared, watcher or own, self._trainer(project, data, goal))

    def sizes_that_fit(self, examples: int) -> list[int]:
        """Return the batch sizes to search: of the default ones, those that are possible.

        Others are larger than the data, or cannot be shared equally by all devices.
        """
        sizes = list(self.space.batch_size)
        if not self.space.default_sizes:
            return sizes
        return [
            size for size in sizes if size <= examples and not self._pass(size) % device.replicas()
        ]

    def _pass(self, batch_size: int) -> int:
        """Examples of a pass, before the largest that fits is asked."""
        return scaling.micro_batch_of(batch_size, self.space.micro_batch_size) or batch_size

    def _smallest_step(self, batch_sizes: Sequence[int]) -> int:
        """Examples of the smallest train step on one device."""
        smallest = spaces.smallest_step(self.space, batch_sizes)
        return smallest // device.replicas()

    def _checked(
        self, arguments: FitArguments, model: keras.Model | None, problems: Problems
    ) -> Data | None:
        """Return the data, and note the problems of all arguments."""
        problems.of(lambda: self._check_horizon(arguments))
        problems.of(lambda: device.check_strategy(device.entered_strategy()))
        problems.of(lambda: replicas.check_space(self.space))
        if self.executor is not None:
            own = self.model_maker.arguments
            problems.of(lambda: training_workers.check_travels(arguments.callbacks, own))
        if model is not None:
            checks.rehearse(self.model_maker, model, self.space, problems)
        schedule = model is not None and _has_schedule(compiled_by_user(model).get("optimizer"))
        problems.of(lambda: user_callbacks.check_callbacks(arguments.callbacks, schedule=schedule))
        data: Data | None = problems.of(
            lambda: arguments.data(lambda: inputs_of(model), preprocess_of(model))
        )
        if data is not None:
            sizes = [*self.sizes_that_fit(data.training.examples), self.space.baseline.batch_size]
            passes, smallest = [self._pass(size) for size in sizes], self._smallest_step(sizes[:-1])
            names = self.space.augmentation
            checks.check_batches(problems, data.training, sizes, passes, names, smallest)
            if model is not None:
                loss = said_of(model, self.model_maker.arguments).get("loss")
                problems.of(lambda: checks.check_agreement(model, loss, data))
                problems.of(lambda: replicas.check_metric(model, self.judged_by["metric"]))
                if loss is not None:
                    problems.of(lambda: check_smoothing(loss, max(self.space.label_smoothing)))
                if augmentation.mixing(names):
                    problems.of(lambda: losses.check_mixed_labels(model, loss))
        return data

    def _accumulates(self) -> bool:
        """Whether a recipe may take a batch in several passes."""
        sizes = (self.space.micro_batch_size, self.space.baseline.micro_batch_size)
        return self.max_batch is not None or any(size is not None for size in sizes)

    def subject(self, arguments: FitArguments, data: Data) -> Subject:
        """Return what checks look at."""
        return Subject.of_search(
            self.model_maker,
            data,
            self.space,
            class_weight=arguments.class_weight,
            accumulates=self._accumulates(),
        )

    def _found(self, arguments: FitArguments, data: Data, problems: Problems) -> list[Found]:
        """Make the checks of what kbatch assumes, and note their refusals."""
        found = catalogue.made(self.subject(arguments, data))
        catalogue.refuse(found, problems)
        return found

    def _agree(
        self, project: Project, arguments: FitArguments, model: keras.Model | None, data: Data
    ) -> None:
        """Compare all facts of the search with the project's, or keep them for a new one."""
        horizon = {"seconds_per_trial": self.seconds_per_trial, "epochs": arguments.epochs}
        project.agree(
            {
                "space": self.space.to_dict(),
                "data": data.fingerprint,
                "seed": self.model_maker.seed,
                **self.judged_by,
                **horizon,
            }
        )
        project.agree(
            {
                "class_weight": described(arguments.class_weight),
                "device": device_memory.device_words(),
                "validation_data": {"checksum": data.pairs},
            }
        )
        training_arguments.agree_on_callbacks(project, arguments.callbacks)
        if model is not None:
            project.agree({"signature": signature(model, self.model_maker.arguments)})
        project.agree(
            {
                "max_batch": _micro_batch.facts(self.max_batch),
                "max_accumulation_steps": self.max_accumulation_steps,
            }
        )
        if isinstance(self.max_batch, Table) and "table" not in project.facts():
            project.agree({"table": self.max_batch.to_dict()})

    def _check_values(self, hp: Any) -> None:
        """Refuse values of hyperparameters that `build` does not have."""
        maker, policy = self.model_maker, self.space.baseline.policy
        check_known_values(maker.values, hp, lambda other: maker.raw(policy, other))

    def default_model(self, hp: Any) -> keras.Model | None:
        """Return the model that `build` makes today; `None` if memory runs out.

        The trainings will run out of memory too then, which is an outcome.
        """
        try:
            return self.model_maker.raw(self.space.baseline.policy, hp)
        except Exception as error:  # TensorFlow has no one class for running out of memory
            if not is_out_of_memory(error):
                raise
            return None

    def _check_horizon(self, arguments: FitArguments) -> None:
        if (self.seconds_per_trial is None) == (arguments.epochs is None):
            both = f"seconds_per_trial={self.seconds_per_trial} and epochs={arguments.epochs}"
            received = "neither" if arguments.epochs is None else both
            raise SearchError(
                "A search must be given either seconds_per_trial or epochs",
                received,
                "Pass one of them",
            )
        if arguments.epochs is not None and whole_number(arguments.epochs) is None:
            raise SearchError(
                "`epochs` must be a whole number of at least 1",
                arguments.epochs,
                "Pass epochs=5, say",
            )

    def _goal_of(
        self, project: Project, data: Data, arguments: FitArguments, model: keras.Model | None
    ) -> Goal:
        """The project's goal, or for a new project the goal of these terms."""
        stored = project.facts().get("goal")
        if stored is None:
            seconds = self.seconds_per_trial or self._seconds_of_epochs(
                project, data, arguments.epochs or 1
            )
            stored = goal_of(
                seconds,
                data=data,
                measured=ModelMetrics(model, self.model_maker.arguments),
                **self.judged_by,
            ).to_dict()
            project.agree({"goal": stored})
        return Goal.from_dict(stored)

    def _trainer(self, project: Project, data: Data, goal: Goal | None) -> Trainer:
        traces = Traces() if self.reuse_traces else None
        if self.executor is None:
            return LocalTrainer(self.model_maker, data, goal, traces)
        shared = (self.model_maker, data, self.space.augmentation, goal, traces)
        return IsolatedTrainer(*shared, project.folder, self.executor)

    def _seconds_of_epochs(self, project: Project, data: Data, epochs: int) -> float:
        """The horizon that lets the baseline see the data `epochs` times."""
        recipe = baseline_recipe(project, self.model_maker, self.space)
        job = baseline_job(project, self.model_maker, self.space, recipe)
        with contextlib.closing(self._trainer(project, data, None)) as trainer:
            return seconds_of_epochs(project, job, data.training.examples, epochs, trainer)


def _has_schedule(optimizer: Any) -> bool:
    """Whether an optimizer, or the one inside of loss scaling, follows a learning-rate schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return has_schedule(inner)


class PreparedSearch:
    """Keeps a search that was opened ahead, for calls with the very same objects.

    `tuner.search` and `kbatch.confirm` take it instead of preparing the data again. The data must
    not change in between: they are not checked again.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._search: Search | None = None
        self._device = ""

    def open(self, project: Project, *args: Any, **kwargs: Any) -> Search:
        """Open and keep a search."""
        self._search, self._device = (
            self._terms.open(project, args, kwargs),
            device_memory.device_words(),
        )
        return self._search

    def matching(
        self,
        project: Project,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        watcher: Watcher | None,
    ) -> Search | None:
        """Return the search that was opened for these arguments, or `None`."""
        search = self._search
        if search is None or search.project.directory != project.directory:
            return None
        if self._device != device_memory.device_words():  # the tuner has a strategy
            return None
        if not search.arguments.same_objects(FitArguments.parse(args, kwargs)):
            return None
        # Another process may have trained in the project meanwhile.
        search.project.store.read_again()
        return dataclasses.replace(search, watcher=watcher or search.watcher)


FACT = "given"
KEPT = ("batched", "validation_split", "validation_batch_size")  # what a project can keep itself
WHOSE_X = ("y", "sample_weight", "batched")  # belong to one x
HELD_OUT = ("validation_data", "validation_split")  # of which one is given


@dataclass(frozen=True)
class Remembered:
    """The arguments of a search that this process has made."""

    directory: Path  # folder of the tuner's project
    arguments: FitArguments  # the arguments, with copies of the callbacks as they were

    @classmethod
    def of(cls, project: Project, arguments: FitArguments) -> Remembered:
        """Return what a search was given, with callbacks that no training has used."""
        fresh = copy.deepcopy(list(arguments.callbacks))
        return cls(project.directory, dataclasses.replace(arguments, callbacks=fresh))


def searched_by(tuner: Any, what: str) -> tuple[Any, Terms]:
    """Return the hypermodel of a tuner, and the terms of its search."""
    hypermodel = getattr(tuner, "hypermodel", None)
    terms = getattr(hypermodel, "terms", None)
    if hypermodel is None or not isinstance(terms, Terms):
        raise SearchError(
            f"{what} needs a search of kbatch's",
            type(tuner if hypermodel is None else hypermodel).__name__,
            "Pass a tuner made with kbatch.HyperModel",
        )
    return hypermodel, terms


def facts_of(arguments: FitArguments) -> dict[str, Any]:
    """Return which arguments a search was given, and those of them that a project can keep."""
    given = _given(vars(arguments))
    names = [name for name in given if name not in ("callbacks", "epochs", "verbose", *KEPT)]
    return {"names": names, **{name: given[name] for name in KEPT if name in given}}


def completed_arguments(
    remembered: Remembered | None, project: Project, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments by name, with those of the search where none is given."""
    own = {name: value for name, value in given.items() if value is not None}
    known: Mapping[str, Any] = project.facts().get(FACT) or {}
    from_search = {name: known[name] for name in KEPT if name in known}
    if remembered is not None and remembered.directory == project.directory:
        from_search = _given(vars(remembered.arguments))
    if "x" in own and own["x"] is not from_search.get("x"):
        kept = [name for name in from_search if name not in WHOSE_X or name in known]
        from_search = {name: from_search[name] for name in kept}
    if any(name in own for name in HELD_OUT):
        from_search = {name: from_search[name] for name in from_search if name not in HELD_OUT}
    return {**from_search, **own}


def check_complete(project: Project, given: Mapping[str, Any], what: str) -> None:
    """Refuse a call that lacks what the search was given, and say all of it by name."""
    facts = project.facts()
    names = (facts.get(FACT) or {}).get("names", ["x"])
    missing = {name: f"{name}=…" for name in names if name not in given}
    callbacks = facts.get(arguments.CALLBACKS_FACT) or []
    if callbacks and "callbacks" not in given:
        classes = arguments.callback_names(callbacks)
        missing[f"callbacks ({classes})"] = f"callbacks=[{classes}]"
    if missing:
        raise SearchError(
            "A process that has not made the search must be given what the search was given",
            f"{what} without {', '.join(missing)}",
            f"Pass {', '.join(missing.values())}",
        )


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not the defaults."""
    defaults: Sequence[Any] = dataclasses.fields(FitArguments)
    return {
        field.name: arguments[field.name]
        for field in defaults
        if field.name == "x" or not _is_default(arguments[field.name], field.default)
    }


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)) and not value:
        return True  # no callbacks
    plain = value is None or isinstance(value, (bool, int, float, str))
    return plain and (value is None or value == default)
