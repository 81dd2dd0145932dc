"""Copies: the build function of a model that is there already, compiled as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kbatch.errors import ModelError
from kbatch.models.compilation import copied_metric
from kbatch.models.optimizers import own_optimizer
from kbatch.models.start import seed_scope
from kbatch.runtime.keras_private import compile_as_keras, compiled_by_user
from kbatch.standin.configuration import check_like, source_of
from kbatch.standin.weights import StartWeights

Seen = Callable[[Any], Any]
SEEDS = (1, 2)  # of the fresh models that the user's weights are compared with


class Copies:
    """A build function: each call returns a model like the user's, compiled as that was.

    Loaded and trained weights are the user's; the others are drawn afresh.

    Attributes:
        start: `StartWeights`.
        unlabelled: Function, what of the inputs the steps see of a model that is trained on inputs
            alone: streams of kbatch have labels. `None` for a model that is trained on labels.

    Raises:
        ModelError: If Keras cannot make the model again.
    """

    def __init__(
        self, model: keras.Model, inputs: Any = None, unlabelled: Seen | None = None
    ) -> None:
        self.unlabelled = unlabelled
        self._source = source_of(model, str(keras.config.dtype_policy().name))
        self._compiled, self._inputs = compiled_by_user(model), inputs
        fresh = []
        for seed in SEEDS:
            with seed_scope(seed):
                fresh.append(self._source.made(self._inputs))
            check_like(model, fresh[-1])
        self.start = StartWeights.of(model, fresh)

    def __call__(self) -> keras.Model:
        """Return a new model."""
        made = self._source.made(self._inputs)
        self.start.put(made)
        if made.variables and type(made).call is keras.Model.call:
            made.built = True  # nothing else builds a model that is never called
        if self._compiled:
            own = dict(self._compiled)
            for name in ("metrics", "weighted_metrics"):
                own[name] = copied_metric(own.get(name))
            if isinstance(own["optimizer"], keras.optimizers.Optimizer):
                own["optimizer"] = own_optimizer(own["optimizer"])
            compile_as_keras(made, **own)
        if self.unlabelled:
            take_labels_away(made, self.unlabelled)
        return made

    @property
    def sentence(self) -> str:
        """What each training begins with, in words."""
        return self.start.sentence


NEW_MODEL = ("policy", "recompute", "normalization")  # axes that only a new model can take


class SameModel:
    """A build function that returns one and the same model, which Keras cannot make again.

    Attributes:
        why: String, why it cannot.
        unlabelled: See `Copies`.
    """

    def __init__(self, model: keras.Model, why: str, unlabelled: Seen | None) -> None:
        self._model, self.why, self.unlabelled = model, why, unlabelled

    def __call__(self) -> keras.Model:
        """Return the model."""
        if self.unlabelled:
            take_labels_away(self._model, self.unlabelled)
        return self._model

    @property
    def sentence(self) -> str:
        """What each training begins with, in words, and what is left out."""
        return (
            f"The model cannot be made anew ({self.why}), so {', '.join(NEW_MODEL)} are left out, "
            "and each training begins with the weights that it has"
        )


STEPS = ("train_step", "test_step")
OWN_STEP = "_kbatch_own_step"  # where a step without labels keeps the one that it calls


def take_labels_away(model: keras.Model, seen: Seen) -> None:
    """Let the steps of a model see the inputs alone, as if `fit` had been given nothing else.

    Args:
        model: `keras.Model`.
        seen: Function of the inputs that returns what the steps see.
    """
    for name in STEPS:
        step = getattr(model, name)
        if hasattr(step, OWN_STEP):
            continue

        def without_labels(data: Any, step: Any = step) -> Any:
            return step(seen(data[0]))

        vars(without_labels)[OWN_STEP] = vars(model).get(name)
        setattr(model, name, without_labels)


def alone(x: Any) -> Any:
    """Return inputs as Keras hands them to a step that gets nothing else."""
    return (x,) if isinstance(x, (tuple, list)) else x


def in_tuple(x: Any) -> Any:
    """Return inputs as a dataset of `(x,)` hands them to a step."""
    return (x,)


def give_labels_back(model: keras.Model) -> None:
    """Undo `take_labels_away`."""
    for name in STEPS:
        if not hasattr(vars(model).get(name), OWN_STEP):
            continue
        before = getattr(vars(model)[name], OWN_STEP)
        delattr(model, name)
        if before is not None:
            setattr(model, name, before)


def copies_of(
    model: keras.Model, inputs: Any = None, unlabelled: Seen | None = None
) -> Copies | SameModel:
    """Return a build function of models like a compiled one, or of itself if there is no other."""
    try:
        return Copies(model, inputs, unlabelled)
    except ModelError as error:
        return SameModel(model, str(error.received), unlabelled)
