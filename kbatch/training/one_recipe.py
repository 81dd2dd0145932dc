"""One recipe: trained without a tuner (`kbatch.train`), or for longer (`kbatch.retrain`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras

from kbatch.callbacks import user_callbacks
from kbatch.checks import arguments, catalogue
from kbatch.checks.accumulation import accumulation_of, settled
from kbatch.checks.check import Found, Subject
from kbatch.data import augmentation
from kbatch.data.streams import inputs_of
from kbatch.data.validation import Data
from kbatch.errors import Problems, ProjectChangedError, RecipeError, SearchError, in_one_frame
from kbatch.model_spec import ModelArguments, ModelSpec, shows
from kbatch.models import replicas
from kbatch.models.losses import check_smoothed_metric
from kbatch.models.maker import ModelMaker, check_known_values, described
from kbatch.models.preprocessor import preprocess_of, put_back
from kbatch.outcome import Goal, Outcome
from kbatch.recipe import Recipe, check_recipe
from kbatch.recipe_words import CONSTANT, whole_number
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.results.claim import Race
from kbatch.results.ranking import best_of, unranked
from kbatch.results.words import own_values
from kbatch.rules import batch_schedule
from kbatch.runtime import device, device_memory, users_code
from kbatch.runtime.oom import is_out_of_memory
from kbatch.search import tuner_border
from kbatch.training import arguments as training_arguments
from kbatch.training import checks, tensorboard
from kbatch.training import terms as training_terms
from kbatch.training.arguments import FitArguments
from kbatch.training.goal import goal_of, horizon_of, judged_by
from kbatch.training.metrics import ModelMetrics
from kbatch.training.pace import RunOptions
from kbatch.training.run import run
from kbatch.training.terms import Terms
from kbatch.training.trial import Trial

if TYPE_CHECKING:
    from typing_extensions import Unpack


@shows(ModelSpec)
@in_one_frame
def train(
    recipe: Recipe,
    build: Callable[..., keras.Model] | ModelSpec,
    x: Any,
    y: Any = None,
    validation_data: Any = None,
    *,
    seconds: float | None = None,
    epochs: int | None = None,
    updates: int | None = None,
    metric: str = "val_accuracy",
    direction: str | None = None,
    chance: float | None = None,
    target: float | None = None,
    sample_weight: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    batched: bool | None = None,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: Any = 0,
    **model_arguments: Unpack[ModelArguments],
) -> tuple[keras.Model, Outcome]:
    """Train one recipe for some seconds, epochs or updates, and measure it as a trial of a search.

    Use it to try a recipe by hand, or to train the best recipe of a search for longer. With
    `epochs` or `updates` it makes exactly these updates, however long they take.
    The twelve marks of a trial, and the progress of schedules, are placed on the examples then,
    instead of the seconds. The curve and all times are in seconds on the clock in both cases.

    Args:
        recipe: `Recipe` to follow, such as `kbatch.best_recipe(tuner)`.
        build: Function `build(hp)` or `build()` that returns a model, compiled or not, or a
            `keras_tuner.HyperModel`.
        x: Array, tensor, list, tuple or dict of them, a `tf.data.Dataset` of `(x, y)`, batched or
            not, or a `keras.utils.PyDataset`.
        y: Labels, for arrays.
        validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset.
        seconds: Float, training seconds on the clock. One of `seconds`, `epochs` and `updates`.
        epochs: Integer, passes over the data.
        updates: Integer, weight updates. Not with a growing batch, whose size then is not known.
        metric: String, the metric to measure. Defaults to `"val_accuracy"`.
        direction: `"max"` or `"min"`; inferred for metrics and losses of Keras' own.
        chance: Float, the metric of a model that learned nothing. Defaults to what the metric
            itself gives for the best constant answer on the validation labels.
        target: Float, the value at which training may end. Optional.
        sample_weight: Weights of the examples, for arrays. Optional.
        validation_split: Float, the share of the arrays' last examples to validate on. Defaults to
            `0`.
        validation_batch_size: Integer, examples per validation batch. Defaults to `32`.
        batched: Boolean, whether a dataset's elements are batches. Defaults to finding out.
        class_weight: Mapping from class to weight. Optional.
        callbacks: Keras callbacks of your own. Optional.
        verbose: As in Keras' `fit`. Defaults to `0`.
        **model_arguments: `loss`, `metrics`, `seed`, `values` and `declare`; see
            `kbatch.ModelSpec`. Of `tuner.get_best_hyperparameters()[0].values`, kbatch's own are
            left to the recipe.

    Returns:
        A tuple of the model, with the weights of the value held, and the `Outcome`.

    Raises:
        KbatchError: If recipe, model or data cannot be used; the message says what to do.

    Example:
    ```python
    recipe = kbatch.Recipe(batch_size=128, optimizer="sgd", learning_rate=0.04)
    model, outcome = kbatch.train(recipe, build, x, y, (x_val, y_val), epochs=20)
    print(outcome.value, outcome.examples_per_second)
    ```
    """
    _check_no_tuner(recipe)
    arguments = FitArguments(
        x,
        y,
        sample_weight,
        validation_data,
        validation_split,
        validation_batch_size,
        batched,
        class_weight,
        callbacks,
        verbose,
    )
    length = {"seconds": seconds, "epochs": epochs, "updates": updates}
    judged = judged_by(metric, direction, chance, target)
    return trained(recipe, ModelSpec.of(build, **model_arguments), arguments, judged, length)


def trained(
    recipe: Recipe,
    spec: ModelSpec,
    arguments: FitArguments,
    judged: Mapping[str, Any],
    length: Mapping[str, Any],
    agree: Callable[[Data], None] = lambda data: None,
) -> tuple[keras.Model, Outcome]:
    """Train one recipe, and return the model and the outcome; see `train`."""
    check_recipe(recipe)
    device_memory.tell_of_unused_card()
    device.check_gpus_not_left()
    device.check_strategy(device.entered_strategy())
    counts, seconds = _length(length), length.get("seconds")
    check_growth(recipe, length.get("updates"))
    horizon = math.inf if seconds is None else horizon_of(seconds)
    check_smoothed_metric(judged["metric"], [recipe.label_smoothing])
    check_augmentation(recipe)
    callbacks, model_maker = tensorboard.checked_callbacks(arguments.callbacks), ModelMaker.of(spec)
    plain = _plain(model_maker, recipe.policy)
    data = arguments.data(lambda: inputs_of(plain), preprocess_of(plain))
    agree(data)
    _check_passes(recipe, data)
    weights = arguments.class_weight
    subject = Subject.of_training(model_maker, data, recipe, class_weight=weights)
    found = _found(subject)
    recipe = settled(recipe, accumulation_of(catalogue.facts(found)))
    hp, trial = model_maker.hyperparameters(), Trial()
    model = trial.make(model_maker, recipe, hp)
    with trial.leave_out():
        if not trial.failure:
            check_known_values(spec.values, hp, lambda other: model_maker.raw(recipe.policy, other))
            replicas.check_metric(model, judged["metric"])
        # not the model to train, since looking at its outputs builds it
        looked_at = model if trial.failure else subject.model
        measured = ModelMetrics(looked_at, model_maker.arguments)
        goal = goal_of(horizon, data=data, measured=measured, **judged)
    options = RunOptions(
        model_maker.seed,
        model_maker.own_policy,
        list(callbacks),
        class_weight=weights,
        verbose=arguments.verbose,
        examples=_examples(counts, recipe, data.training.examples),
    )
    outcome = trial.measured(trial.failure or run(model, recipe, data, goal, options))
    model_maker.start.leave()
    _warn(found)
    noted = (*([goal.note] if goal.note else []), *catalogue.sentences(found))
    tensorboard.write_training(callbacks, recipe, outcome, goal.metric, hp.values)
    rate = outcome.learning_rate or recipe.learning_rate
    put_back(model)
    return model, replace(outcome, learning_rate=rate, remarks=(*outcome.remarks, *noted))


def _plain(model_maker: ModelMaker, policy: str) -> keras.Model | None:
    """A model as `build` returns it; `None` if memory runs out, which is an outcome."""
    try:
        return model_maker.raw(policy)
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise
        return None


def _warn(found: Sequence[Found]) -> None:
    """Warn of own hyperparameters that nobody chose: the model may be another than is meant."""
    facts = catalogue.facts(found).get(arguments.OWN_VALUES_NAME, {})
    if "lowest" in facts:
        hint = "kbatch.retrain(tuner) takes those of a search"
        users_code.warn(f"The model has {facts['sentence']}; {hint}.")


def _check_no_tuner(recipe: Any) -> None:
    """Refuse a tuner, whose best recipe has a function of its own."""
    if hasattr(recipe, "project_dir"):
        raise RecipeError(
            "`recipe` must be a Recipe",
            f"a tuner, {type(recipe).__name__}",
            "Use kbatch.retrain(tuner, epochs=50), which takes data and callbacks from the search",
        )


def _found(subject: Subject) -> list[Found]:
    """Compare the model with its data, make all checks, and raise their refusals.

    A model that does not fit into memory is not looked at: that is the outcome of its training.
    """
    try:
        model = subject.model
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise
        return []
    if subject.data is not None:
        checks.check_agreement(model, subject.loss, subject.data)
    found = catalogue.made(subject)
    catalogue.refuse(found)
    return found


def _check_passes(recipe: Recipe, data: Data) -> None:
    """Refuse a recipe whose passes these data or replicas cannot make."""
    problems, step = Problems(), _first_step(recipe) // device.replicas()
    sizes, passes = [recipe.batch_size], [recipe.examples_per_pass]
    checks.check_batches(problems, data.training, sizes, passes, [recipe.augmentation], step)
    problems.raise_all()


def check_augmentation(recipe: Recipe) -> None:
    """Refuse an augmentation that is not registered."""
    if recipe.augmentation not in augmentation.augmentation_names():
        raise RecipeError(
            f"`augmentation` must be one of {', '.join(augmentation.augmentation_names())}",
            recipe.augmentation,
            "Register it with kbatch.register_augmentation",
        )


def _length(length: Mapping[str, Any]) -> dict[str, int]:
    """The epochs or updates by name; empty if seconds are given."""
    given = {name: value for name, value in length.items() if value is not None}
    if len(given) != 1:
        received = " and ".join(f"{name}={value}" for name, value in given.items()) or "none"
        raise SearchError(
            "A training must be given one of seconds, epochs and updates",
            received,
            "Pass one of them",
        )
    counts = {}
    for name in given.keys() - {"seconds"}:
        counts[name] = whole_number(given[name]) or 0
        if counts[name] < 1:
            raise SearchError(
                f"`{name}` must be a whole number of at least 1",
                given[name],
                f"Pass {name}=20, say",
            )
    return counts


def _examples(length: Mapping[str, int], recipe: Recipe, of_pass: int) -> int | None:
    """The examples to train on; `None` for seconds."""
    if "updates" in length:
        return length["updates"] * recipe.batch_size
    return length["epochs"] * of_pass if length else None


def _first_step(recipe: Recipe) -> int:
    """Examples of the first train step."""
    return batch_schedule.first_pass(
        recipe.batch_size, recipe.growth.factor, recipe.steps_per_update
    )


def check_growth(recipe: Recipe, updates: Any) -> None:
    """Refuse a number of updates for a batch that grows."""
    if updates is not None and recipe.batch_schedule != CONSTANT:
        raise RecipeError(
            "A training of a number of updates must have a constant batch",
            f"batch_schedule={recipe.batch_schedule!r}",
            "Pass epochs or seconds",
        )


RETRAINED = "retrained"  # before the names of the files that callbacks write


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
    hypermodel, terms = training_terms.searched_by(tuner, "kbatch.retrain")
    project = Project(tuner.project_dir)
    best, facts = _best(project), project.facts()
    passed = {"x": x, "y": y, "validation_data": validation_data, **fit_arguments}
    given = training_terms.completed_arguments(hypermodel.remembered, project, passed)
    training_terms.check_complete(project, given, "kbatch.retrain")
    arguments = FitArguments.parse((), given)
    training_arguments.agree_on_callbacks(project, arguments.callbacks)
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
    copies = user_callbacks.copies_of_callbacks(arguments.callbacks, RETRAINED)
    own = dataclasses.replace(arguments, callbacks=copies, verbose=verbose)
    length = {"seconds": seconds, "epochs": epochs, "updates": updates}
    with tuner_border.scope(tuner):
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
