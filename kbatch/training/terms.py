"""Terms: what a search is begun with, and the search that comes of them and the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import keras
import tensorflow as tf

from kbatch.building.compiled import compiled_by_user, said_of
from kbatch.building.label_smoothing import smoothed
from kbatch.building.model_maker import ModelMaker
from kbatch.building.signature import described, signature
from kbatch.data.batches import Data
from kbatch.data.elements import inputs_of
from kbatch.device import meter
from kbatch.errors import SearchError
from kbatch.memory import _micro_batch
from kbatch.memory._max_batch_table import Table
from kbatch.problems import Problems
from kbatch.recipe import Recipe, whole_number
from kbatch.runtime.oom import is_out_of_memory
from kbatch.space import Space
from kbatch.training import agreement, user_callbacks
from kbatch.training.fit_arguments import FitArguments
from kbatch.training.goal import Goal, goal_of
from kbatch.training.metrics import Measured
from kbatch.training.progress import ProgressBar, Watcher
from kbatch.training.project import Project
from kbatch.training.run import RunOptions, check_sizes, median_update_seconds
from kbatch.training.search import Search, baseline_recipe
from kbatch.training.trial import Trial

CALIBRATION_UPDATES = range(5, 41)


@dataclass(frozen=True)
class Terms:
    """What all trainings of a search share before its data are known.

    Attributes:
        model_maker: Makes the models.
        space: `Space` of recipes.
        judged_by: Metric, direction, chance and target, as `goal.judged_by` checked them.
        seconds_per_trial: Float, the horizon, or `None` if `search` is given epochs.
        max_batch: The largest micro-batch that fits: an integer, a `Table`, or `None`.
        max_accumulation_steps: Integer, the most passes per update that `max_batch` leads to.
    """

    model_maker: ModelMaker
    space: Space
    judged_by: Mapping[str, Any]
    seconds_per_trial: float | None
    max_batch: int | Table | None
    max_accumulation_steps: int

    def fitted(self, recipe: Recipe) -> Recipe | None:
        """The recipe with a micro-batch that fits into memory; `None` if none does."""
        return _micro_batch.fitted(recipe, self.max_batch, self.max_accumulation_steps)

    def why_not(self, recipe: Recipe) -> str:
        """The sentence for a recipe that does not fit."""
        return _micro_batch.why_not(recipe, self.max_batch, self.max_accumulation_steps)

    def open(
        self,
        project: Project,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        watcher: Watcher | None = None,
        problems: Problems | None = None,
    ) -> Search:
        """The search of these terms and what `search` was called with, agreed with what the project was begun with.

        Data are prepared and checksummed, and the model is made once.

        Args:
            project: The project, old or new.
            args: `x` and `y`, as for `search`.
            kwargs: What else `search` is called with.
            watcher: Told of every training. Defaults to a progress bar, unless `verbose=` is
                passed.
            problems: What was found wrong before, to be said with what is found here. Optional.

        Raises:
            ProjectChangedError: If the project was begun with another space, data, metric, horizon,
                model or seed.
            KbatchError: If anything else cannot be used; one error says all of it.
        """
        problems = problems or Problems()
        arguments: FitArguments | None = problems.of(lambda: FitArguments.parse(args, kwargs))
        model, data = self._default_model(), None
        if arguments is not None:
            data = self._checked(arguments, model, problems)
        problems.raise_all()
        arguments, data = cast(FitArguments, arguments), cast(Data, data)  # or there were problems
        self._agree(project, arguments, model, data)
        goal = self._goal_of(project, data, arguments, model)
        own = ProgressBar() if arguments.verbose is None else Watcher()
        return Search(project, self.model_maker, self.space, data, goal, arguments, watcher or own)

    def sizes_that_fit(self, examples: int) -> list[int]:
        """The batch sizes that are searched: those that stand in the space by default only as far as the data hold them."""
        sizes = list(self.space.batch_size)
        return [size for size in sizes if size <= examples] if self.space.default_sizes else sizes

    def _checked(
        self, arguments: FitArguments, model: keras.Model | None, problems: Problems
    ) -> Data | None:
        """The data, with what is wrong with them and the other arguments noted."""
        problems.of(lambda: self._check_horizon(arguments))
        problems.of(_check_devices)
        schedule = model is not None and _has_schedule(compiled_by_user(model).get("optimizer"))
        problems.of(lambda: user_callbacks.check(arguments.callbacks, schedule=schedule))
        data: Data | None = problems.of(lambda: arguments.data(lambda: inputs_of(model)))
        if data is not None:
            wanted = [*self.sizes_that_fit(data.training.examples), self.space.baseline.batch_size]
            problems.of(lambda: check_sizes(wanted, data))
            if model is not None:
                loss = said_of(model, self.model_maker.arguments).get("loss")
                problems.of(lambda: agreement.check(model, loss, data))
                if loss is not None:
                    problems.of(lambda: smoothed(loss, max(self.space.label_smoothing)))
        return data

    def _agree(
        self, project: Project, arguments: FitArguments, model: keras.Model | None, data: Data
    ) -> None:
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
            {"class_weight": described(arguments.class_weight), "device": meter.device_words()}
        )
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

    def _default_model(self) -> keras.Model | None:
        """The model as `build` makes it by default; `None` if memory runs out, which the trainings will find themselves."""
        try:
            return self.model_maker.raw(self.space.baseline.policy)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _check_horizon(self, arguments: FitArguments) -> None:
        if (self.seconds_per_trial is None) == (arguments.epochs is None):
            received = (
                "neither"
                if arguments.epochs is None
                else f"seconds_per_trial={self.seconds_per_trial} and epochs={arguments.epochs}"
            )
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
        stored = project.facts().get("goal")
        if stored is None:
            seconds = self.seconds_per_trial or self._seconds_of_epochs(
                project, data, arguments.epochs or 1
            )
            stored = goal_of(
                seconds,
                data=data,
                measured=Measured(model, self.model_maker.arguments),
                **self.judged_by,
            ).to_dict()
            project.agree({"goal": stored})
        return Goal(**stored)

    def _seconds_of_epochs(self, project: Project, data: Data, epochs: int) -> float:
        """The horizon that lets the baseline see the data `epochs` times, measured once and then kept with the project.

        It is `epochs * ceil(n / batch) * m`, with `m` the median of the baseline's updates 5 to 40,
        input included.
        """
        stored = project.facts().get("measured_horizon_seconds")
        if stored is None:
            recipe, trial = baseline_recipe(project, self.model_maker, self.space), Trial()
            options = RunOptions(seed=self.model_maker.seed, own_policy=self.model_maker.own_policy)
            median = median_update_seconds(
                trial.make(self.model_maker, recipe), recipe, data, CALIBRATION_UPDATES, options
            )
            trial.forget()
            stored = epochs * math.ceil(data.training.examples / recipe.batch_size) * median
            project.agree({"measured_horizon_seconds": stored})
        return float(stored)


def _check_devices() -> None:
    if tf.distribute.has_strategy():
        raise SearchError(
            "A search must run on one device",
            "a tf.distribute strategy's scope",
            "Call search outside of the scope",
        )


def _has_schedule(optimizer: Any) -> bool:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(
        getattr(inner, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule
    )
