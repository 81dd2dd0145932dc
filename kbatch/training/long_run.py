"""The long run: the best recipe of a search trained again, by `kbatch.retrain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from kbatch import tuner as keras_tuners
from kbatch.callbacks import user_callbacks
from kbatch.data.validation import Data
from kbatch.errors import ProjectChangedError, SearchError, in_one_frame
from kbatch.goal import Goal
from kbatch.model_spec import ModelSpec
from kbatch.models.maker import described
from kbatch.outcome import Outcome
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.results.claim import Race
from kbatch.results.own_values import own_values
from kbatch.results.ranking import unranked
from kbatch.results.winner import best_of
from kbatch.training import callback_facts, remembered
from kbatch.training.fit_arguments import FitArguments
from kbatch.training.one_recipe import trained
from kbatch.training.search_terms import Terms

NAME = "retrained"  # before the names of the files that callbacks write


@in_one_frame
def retrain(
    tuner: Any,
    x: Any = None,
    y: Any = None,
    validation_data: Any = None,
    *,
    seconds: float | None = None,
    epochs: int | None = None,
    updates: int | None = None,
    verbose: Any = 0,
    **fit_arguments: Any,
) -> tuple[keras.Model, Outcome]:
    """Train the best recipe of a search for longer, with all that the search was given.

    Use it to take the winner home. Data, callbacks (copied anew), weights, metric, chance, loss and
    the values of your own hyperparameters are the search's. After `tuner.search` nothing needs to
    be passed again; a new process must pass data and callbacks, and is told which.

    Args:
        tuner: The tuner after `search`, made with a `kbatch.HyperModel`.
        x: As for `search`. Defaults to the data of the search.
        y: As for `search`.
        validation_data: As for `search`.
        seconds: Float, training seconds on the clock. One of `seconds`, `epochs` and `updates`.
        epochs: Integer, passes over the data.
        updates: Integer, weight updates.
        verbose: As in Keras' `fit`. Defaults to `0`.
        **fit_arguments: The other arguments of `search`, such as `callbacks` or `class_weight`.

    Returns:
        A tuple of the model, with the weights of the value held, and the `Outcome`.

    Raises:
        SearchError: If no trial ended well, or if a new process lacks something.
        ProjectChangedError: If something differs from what the search was given.

    Example:
    ```python
    model, outcome = kbatch.retrain(tuner, epochs=50)
    model.save("best.keras")
    ```
    """
    hypermodel, terms = remembered.searched_by(tuner, "kbatch.retrain")
    project = Project(tuner.project_dir)
    best, facts = _best(project), project.facts()
    passed = {"x": x, "y": y, "validation_data": validation_data, **fit_arguments}
    given = remembered.completed(hypermodel.remembered, project, passed)
    remembered.check_complete(project, given, "kbatch.retrain")
    arguments = FitArguments.parse((), given)
    callback_facts.agree(project, arguments.callbacks)
    _agreed(lambda: project.agree({"class_weight": described(arguments.class_weight)}))

    def agree(data: Data) -> None:
        _agreed(lambda: project.agree({"data": data.fingerprint}))

    goal = Goal.from_dict(facts["goal"])
    judged = {
        "metric": goal.metric,
        "direction": goal.direction,
        "chance": goal.chance,
        "target": None,  # which ends trials early
    }
    copies = user_callbacks.copies_of_callbacks(arguments.callbacks, NAME)
    own = dataclasses.replace(arguments, callbacks=copies, verbose=verbose)
    length = {"seconds": seconds, "epochs": epochs, "updates": updates}
    with keras_tuners.scope(tuner):
        return trained(best.recipe, _spec(terms, best), own, judged, length, agree)


def _best(project: Project) -> Record:
    """The training of the recipe that `kbatch.best_recipe` gives."""
    records = project.store.records()
    best = best_of(records, Race.of(project.facts()).dropped)
    if best is None:
        raise SearchError(
            "A search must have a trial that did not fail or stop at a rung to be trained again",
            *unranked(records),
        )
    return best


def _spec(terms: Terms, best: Record) -> ModelSpec:
    """The model of the search, with the values of its best trial."""
    maker = terms.model_maker
    return ModelSpec(
        maker.build,
        maker.arguments.loss,
        maker.arguments.metrics,
        maker.seed,
        {**maker.values, **own_values(best)},
        maker.declare,
    )


def _agreed(agree: Callable[[], None]) -> None:
    """Refuse what differs from the search, with what to do for other data."""
    try:
        agree()
    except ProjectChangedError as error:
        raise ProjectChangedError(
            "A recipe must be trained again on what its search was given",
            error.received,
            "For other data call kbatch.train(kbatch.best_recipe(tuner), build, …, values=…)",
        ) from None
