"""The inquiry: `kbatch.advise`, whose arguments are checked and read as evidence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence
from kbatch.advice.model_traits import traits_of
from kbatch.advice.past_results import Results
from kbatch.advice.project_facts import ProjectFacts, facts_of
from kbatch.advice.rulebook import advice_on
from kbatch.batch_growth import BY_PROGRESS, CONSTANT
from kbatch.combination import Combination
from kbatch.errors import DataError, SearchError, in_one_frame
from kbatch.memory._max_batch import MaxBatch, Table
from kbatch.recipe import Recipe, check_recipe
from kbatch.recipe_fields import is_number, whole_number
from kbatch.rules import batch_schedule

if TYPE_CHECKING:
    import keras


@in_one_frame
def advise(
    recipe: Recipe,
    model: keras.Model | None = None,
    results: Any = None,
    *,
    max_batch: int | MaxBatch | Table | None = None,
    training_data: Any = None,
    validation_data: Any = None,
    examples: int | None = None,
    epochs: float | None = None,
    devices: int = 1,
    pretrained: bool = False,
) -> list[Advice]:
    """Say what a seasoned colleague would about a recipe, with reasons and sources.

    Use it before a long training, or on the best recipe of a search. Each rule speaks only where
    something is wrong, so a good recipe gets an empty list. Where the results of a search show that
    something does no harm, they count, and the rule of thumb is silent. Without model and data,
    TensorFlow is imported only to ask whether float16 is fast on this machine.

    Args:
        recipe: `Recipe` to advise on.
        model: `keras.Model`, such as `build()`; for advice on normalization and on fine-tuning.
            Optional.
        results: A tuner after `search`, the folder of a search, or the table of
            `kbatch.results.load`. Optional.
        max_batch: The largest batch that fits in one pass: an integer, or what `find_max_batch` or
            `max_batches` returned. Defaults to what the search was given.
        training_data: `(x, y)` or a dataset. Optional.
        validation_data: `(x, y)` or a dataset, which is compared with `training_data`. Optional.
        examples: Integer, number of training examples. Defaults to that of the training data or of
            the search.
        epochs: Number, passes over the data that you plan. Defaults to the length of a trial.
        devices: Integer, devices that share each pass. Defaults to `1`.
        pretrained: Boolean, whether the model has pretrained weights. A model with frozen layers
            or statistics of an earlier training is taken for pretrained.

    Returns:
        A list of `Advice`, the most important first.

    Raises:
        KbatchError: If an argument cannot be used; the message says what to do.

    Example:
    >>> for advice in advise(Recipe(batch_size=256, optimizer="sgd", learning_rate=0.01)):
    ...     print(advice)
    Scale the learning rate with the batch: at batch 256, 8 times 32, sgd takes about 0.08 instead \
of 0.01.
    >>> advise(Recipe())
    []
    """
    return advice_on(
        evidence_of(
            recipe,
            model,
            results,
            max_batch=max_batch,
            training_data=training_data,
            validation_data=validation_data,
            examples=examples,
            epochs=epochs,
            devices=devices,
            pretrained=pretrained,
        )
    )


def evidence_of(
    recipe: Any,
    model: Any = None,
    results: Any = None,
    *,
    max_batch: Any = None,
    training_data: Any = None,
    validation_data: Any = None,
    examples: Any = None,
    epochs: Any = None,
    devices: Any = 1,
    pretrained: Any = False,
) -> Evidence:
    """Check the arguments of `advise`, and read them.

    Raises:
        KbatchError: If one cannot be used.
    """
    check_recipe(recipe)
    facts = ProjectFacts(Results()) if results is None else facts_of(results)
    count = _length(training_data) if examples is None else _whole("examples", examples)
    count = facts.training_examples if count is None else count
    return Evidence(
        recipe,
        None if model is None else traits_of(model),
        None if results is None else _measured_on(facts.results, _length(validation_data)),
        _largest_batch(recipe, facts.limits if max_batch is None else max_batch),
        count,
        _updates(recipe, epochs, count),
        _shared(training_data, validation_data) or facts.shared,
        facts.own_optimizer,
        facts.space,
        _whole("devices", devices),
        _pretrained(pretrained),
    )


def _whole(name: str, given: Any) -> int:
    number = whole_number(given)
    if number is None:
        raise SearchError(
            f"`{name}` must be a whole number of at least 1", given, f"Pass {name}=2, say"
        )
    return number


def _pretrained(given: Any) -> bool:
    if not isinstance(given, bool):
        raise SearchError("`pretrained` must be True or False", given, "Say which")
    return given


def _measured_on(results: Results, validation_examples: int | None) -> Results:
    """Results that do not tell how many examples they were measured on, with that number."""
    if results.validation_examples or validation_examples is None:
        return results
    return Results(results.trainings, results.metric, validation_examples)


def _updates(recipe: Recipe, epochs: Any, examples: int | None) -> int | None:
    """The updates of so many passes over the data; `None` if nothing is planned or foreseen."""
    if epochs is None:
        return None
    if not is_number(epochs) or epochs <= 0:
        raise SearchError("`epochs` must be a number above 0", epochs, "Pass epochs=20, say")
    if examples is None:
        raise SearchError(
            "`epochs` must come with the number of training examples",
            f"epochs={epochs} alone",
            "Pass examples=50_000, say, or training_data",
        )
    growth, seen = recipe.growth, epochs * examples
    if growth.kind == CONSTANT:
        return math.ceil(seen / recipe.batch_size)
    if growth.kind not in BY_PROGRESS:
        return None  # what is measured decides
    passes = recipe.accumulation_steps
    return batch_schedule.updates(growth.kind, seen, recipe.batch_size, growth.factor, passes)


def _largest_batch(recipe: Recipe, limits: Any) -> int | None:
    """The largest batch that fits in one pass of a recipe's kind; `None` if unknown."""
    if isinstance(limits, MaxBatch):
        return limits.batch_size
    if isinstance(limits, Table):
        row = limits.row(Combination.of(recipe))
        return None if row is None else row.batch_size
    if limits is None:
        return None
    number = whole_number(limits)
    if number is None:
        raise SearchError(
            "`max_batch` must be a batch size, or what find_max_batch or max_batches returned",
            type(limits).__name__,
            "Pass max_batch=256, say",
        )
    return number


def _is_pair(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) in (2, 3)


def _length(data: Any) -> int | None:
    """The number of examples of `(x, y)`; `None` of a dataset, which would have to be read."""
    if not _is_pair(data):
        return None
    from kbatch.data.arrays import as_arrays, common_length

    return common_length(as_arrays(tuple(part for part in data if part is not None)))


def _shared(training: Any, validation: Any) -> tuple[int, int] | None:
    """How many validation examples are training examples too, of those looked at."""
    if training is None and validation is None:
        return None
    from kbatch.checks.validation import DATASETS, shared_of

    for name, data in (("training_data", training), ("validation_data", validation)):
        if data is not None and not _is_pair(data) and not isinstance(data, DATASETS):
            raise DataError(
                f"`{name}` must be (x, y) or a dataset", type(data).__name__, "Pass one of these"
            )
    if training is None or validation is None:
        return None
    if _is_pair(training) and _is_pair(validation):
        return shared_of(training, validation)
    return (1, 1) if training is validation else None  # reading datasets would be dear
