"""The check of own values: a model is built with the values that its author has today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import Subject
from kbatch.given_values import text_of_values
from kbatch.models.compilation import idle
from kbatch.models.maker import own_values, unsaid_values
from kbatch.recipe_fields import COMPILED

NAME = "own values"  # under which a project keeps the finding


def look(subject: Subject) -> Finding | None:
    """Look which hyperparameters of `build` have neither a value nor a `default=`.

    KerasTuner takes the lowest value for them, or the first choice, which is seldom what anybody
    has today.

    Args:
        subject: What is about to train.
    """
    hp = subject.model_maker.hyperparameters()
    subject.model_maker.raw(subject.policy, hp)
    idle_names = _idle(subject, hp)
    unsaid = _without(unsaid_values(hp), idle_names)
    if unsaid:
        return Finding(holds=False, sentence=sentence(unsaid), facts={"lowest": unsaid})
    defaults = _without(own_values(hp), (*subject.model_maker.values, *idle_names))
    if defaults and not subject.seeds:
        return Finding(holds=True, sentence=_sentence_on_defaults(defaults))
    return Finding(holds=True)


def _idle(subject: Subject, hp: Any) -> tuple[str, ...]:
    """The hyperparameters that have no effect, since every recipe replaces the optimizer."""
    if any(recipe.optimizer == COMPILED for recipe in subject.recipes):
        return ()
    unsaid = unsaid_values(hp)
    axes = [axis for axis in hp.space if axis.name in unsaid]
    return idle(subject.model_maker, subject.policy, axes)


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    left_out = set(names)
    return {name: value for name, value in values.items() if name not in left_out}


def sentence(unsaid: Mapping[str, Any]) -> str:
    """Return the sentence on values that nobody chose."""
    return (
        f"your hyperparameters at their lowest values: {text_of_values(unsaid)}; give values= for "
        "what you have today"
    )


def _sentence_on_defaults(defaults: Mapping[str, Any]) -> str:
    return (
        f"your hyperparameters at the defaults of `build`: {text_of_values(defaults)}; "
        "kbatch.retrain takes those of a search"
    )


OWN_VALUES = Check(
    NAME,
    "The hyperparameters of `build` have values that somebody chose",
    "The claim and a warning name those at their lowest values",
    look,
)
