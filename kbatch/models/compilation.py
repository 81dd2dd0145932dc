"""Compilation: a model compiled for a recipe, with the user's loss and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from kbatch.data import augmentation
from kbatch.errors import ModelError
from kbatch.models import accumulation, losses, optimizers, policies, replicas, scopes, train_step
from kbatch.models.losses import check_smoothing, smoothed
from kbatch.models.optimizers import optimizer_of, own_optimizer
from kbatch.models.start import Made
from kbatch.recipe import Recipe
from kbatch.recipe_words import PLAIN, policy_of_keras
from kbatch.recompute._apply import remove
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import compile_as_keras, compiled_by_user

NOT_UNIQUE = re.compile("unique names|names should be unique")


@contextmanager
def fresh_names() -> Iterator[None]:
    """Let Keras choose names inside the `with` block as in a fresh process.

    Keras numbers layers and metrics without a name (`auc`, `auc_1`, …), so the same `build` would
    give other names each time. Afterwards Keras counts on from where it was before.
    """
    counted = keras_private.global_attributes([keras_private.NAME_COUNTERS])
    keras_private.set_global_attributes({keras_private.NAME_COUNTERS: None})
    try:
        yield
    finally:
        keras_private.set_global_attributes(counted)


def names_collide(error: Exception) -> bool:
    """Tell whether an error says that two layers, one made outside `build`, have one name."""
    return isinstance(error, ValueError) and NOT_UNIQUE.search(str(error)) is not None


def snake_case(name: str) -> str:
    """Return the name that Keras derives from the name of a class.

    >>> snake_case("MeanSquaredError"), snake_case("AUC")
    ('mean_squared_error', 'auc')
    """
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()


def without_number(named: keras.metrics.Metric) -> str:
    """Return the name of a metric without the number that Keras adds; a user's own name stays.

    >>> without_number(keras.metrics.AUC(name="auc_3"))
    'auc'
    >>> without_number(keras.metrics.AUC(name="area_2"))
    'area_2'
    """
    own = snake_case(type(named).__name__)
    return own if re.fullmatch(rf"{own}_\d+", str(named.name)) else str(named.name)


PLAIN_VALUES = (
    bool,
    int,
    float,
    str,
    tuple,
    type(None),
)  # types of settings, which a copy must keep


def copied_metric(metrics: Any) -> Any:
    """Return metrics without the state, and the devices, of those in use.

    A metric is made again from its config, which a class of the user's own may lack, or write in
    part. Where that fails or loses a setting, the metric itself is returned: Keras resets it before
    each use.
    """
    return keras.tree.map_structure(lambda part: None if part is None else _copied(part), metrics)


def _copied(metric: Any) -> Any:
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return keras_private.fresh_wrapper(metric)
    try:
        fresh = type(metric).from_config(metric.get_config())
    except Exception:  # whatever the constructor raises that Keras calls
        return metric
    return fresh if _settings(fresh) == _settings(metric) else metric


def _settings(metric: Any) -> dict[str, Any]:
    """The plain values that a metric was made with, and counts in if they are no variables."""
    return {name: each for name, each in vars(metric).items() if isinstance(each, PLAIN_VALUES)}


# Fields of a recipe that no compiled model holds.
PARTS_OF_TRAINING = {
    "augmentation": "augmentation",
    "schedule": "learning-rate schedule",
    "batch_schedule": "batch schedule",
    "ema": "moving average",
    "dropout_scale": "dropout scale",
}
COMPILED_BY_USER = "_kbatch_compiled_by_user"  # where a model keeps the user's compile arguments
COPY_OF = "_kbatch_copy_of"  # where a copy of an optimizer keeps that made outside of `build`
KEPT = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")


def compiles_itself(model: keras.Model) -> bool:
    """Tell whether the class of a model overrides `compile`, as the tasks of keras-hub do."""
    return type(model).compile is not keras.Model.compile


def other_optimizers(model: keras.Model) -> list[str]:
    """Return the names of attributes of a model that hold optimizers besides its own."""
    return [
        name
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer) and name != "optimizer"
        if value is not model.optimizer and not name.startswith("_")
    ]


def _holds_its_optimizer(model: keras.Model) -> bool:
    """Whether the optimizer that Keras was given is the one that the model trains with."""
    given = compiled_by_user(model).get("optimizer")
    held = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if isinstance(given, keras.optimizers.Optimizer):
        return given in (held, model.optimizer)
    return given is None or type(keras.optimizers.get(given)) is type(held)


@dataclass(frozen=True)
class CompileArguments:
    """Compile arguments that do not come from the recipe."""

    loss: Any = None  # loss for a model that `build` does not compile
    metrics: Any = None  # metrics for a model that `build` does not compile


def said_of(model: keras.Model, arguments: CompileArguments) -> dict[str, Any]:
    """Return the arguments that a model is or will be compiled with, by name."""
    given = {"loss": arguments.loss, "metrics": _fresh(arguments.metrics)}
    own = compiled_by_user(model)
    if not own:
        return given
    return {**own, **{name: value for name, value in given.items() if value is not None}}


def as_built(model: Any) -> Any:
    """Return what `build` returned, without what kbatch has made of it in an earlier training.

    A `build` that returns one and the same model returns it compiled for the last recipe.
    """
    known = vars(model).get(COMPILED_BY_USER) if isinstance(model, keras.Model) else None
    if known is None:
        return model
    remove(model)
    own, ours = known
    if keras_private.compile_config(model) is not ours:
        return model  # compiled anew by the user
    if own:
        compile_as_keras(model, **own)
    else:
        model.compiled = False
    return model


def give_own_optimizer(model: Any, made: Made) -> None:
    """Compile a model anew, with a copy of its optimizer, if that was there before the model."""
    if not isinstance(model, keras.Model):
        return  # `compile_for` refuses it
    own = compiled_by_user(model)
    optimizer = own.get("optimizer")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    if not made.not_among(optimizer.variables[:1]):
        return
    # One and the same model holds the last copy, which was trained.
    first = vars(optimizer).get(COPY_OF, optimizer)
    copy = own_optimizer(first)
    vars(copy)[COPY_OF] = first
    compile_as_keras(model, **{**own, "optimizer": copy})


def compile_for(model: keras.Model, recipe: Recipe, arguments: CompileArguments) -> None:
    """Compile a model for a recipe, and keep the user's loss, metrics and other arguments."""
    _check(model, recipe, arguments)
    own = compiled_by_user(model)
    _compile(model, recipe, said_of(model, arguments))
    # Written past `setattr`, so that neither Keras nor TensorFlow tracks it.
    vars(model)[COMPILED_BY_USER] = (own, keras_private.compile_config(model))


def lacking(recipe: Recipe, warmup_passes: float = 0.0) -> str:
    """Return a warning that names the parts of a recipe which a compiled model does not hold.

    Keras takes these parts as arguments of `fit`, or not at all.
    """
    parts = [f"its batch size ({recipe.batch_size})"]
    if recipe.training != PLAIN:
        parts.append(f"its training method ({recipe.training})")
    elif recipe.accumulation_steps > 1:
        parts = [
            f"its batch size (batch_size={recipe.micro_batch_size}, "
            f"of which {recipe.accumulation_steps} make an update)"
        ]
    warms_up = warmup_passes > 0 and recipe.batch_size > REFERENCE_BATCH_SIZE
    if recipe.learning_rate is not None and warms_up:
        parts.append("its warm-up")
    for name, words in PARTS_OF_TRAINING.items():
        value = getattr(recipe, name)
        if value != getattr(Recipe, name):
            parts.append(f"its {words} ({value})")
    return (
        f"hypermodel.build(hp) compiles a model for a recipe ({recipe}), "
        f"and model.fit then lacks {', '.join(parts)}. "
        "Call kbatch.train(kbatch.best_recipe(tuner), build, x, y, validation_data, epochs=…, "
        "values=hp.values) to train as the trial did."
    )


def _compile(model: keras.Model, recipe: Recipe, own: dict[str, Any]) -> None:
    accumulation.check_accumulation(model, recipe, own.get("loss"))
    policies.check_float8(model, recipe, own.get("loss"))
    policies.check_float16(model, recipe, own.get("optimizer"))
    if augmentation.mixing([recipe.augmentation]):
        losses.check_mixed_labels(model, own.get("loss"))
    replicas.check(model, recipe, own.get("loss"))
    scopes.check_dropout(model, recipe.dropout_scale)
    optimizer = optimizer_of(recipe, own.get("optimizer"))
    optimizers.check_gradient_norm(model, recipe, optimizer)
    train_step.check_method(model, recipe, optimizer)
    kept = {name: own[name] for name in KEPT if name in own}
    check_smoothing(kept.get("loss"), recipe.label_smoothing)
    kept["loss"] = smoothed(kept.get("loss"), recipe.label_smoothing)
    # Keras does not store auto_scale_loss: the class of the optimizer is the only trace of it
    scaled = not model.compiled or isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    compile_as_keras(
        model,
        optimizer=policies.loss_scaled(optimizer, recipe),
        jit_compile=recipe.jit_compile,
        auto_scale_loss=scaled,
        **kept,
    )
    if model.jit_compile != recipe.jit_compile:
        raise ModelError(
            "jit_compile=True must be possible for every layer",
            ", ".join(not_compiled_by_xla(model)) or model.name,
            "Search Space(jit_compile=(False,)), replace these layers, pass use_cudnn=False to "
            "LSTM and GRU, or do without enable_op_determinism(), which excludes XLA",
        )


def not_compiled_by_xla(model: keras.Model) -> list[str]:
    """Return the names of the layers that XLA cannot compile."""
    layers = keras_private.flatten_layers(model)
    return [layer.name for layer in layers if layer is not model and not layer.supports_jit]


def _check(model: keras.Model, recipe: Recipe, arguments: CompileArguments) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(
            "`build` must return a keras.Model", type(model).__name__, "Return the model"
        )
    given = [name for name in ("loss", "metrics") if getattr(arguments, name) is not None]
    if model.compiled and given and not compiles_itself(model):
        names = " and ".join(f"`{name}=`" for name in given)
        raise ModelError(
            "Loss and metrics must be given once",
            f"a compiled model, and {names}",
            f"Leave out compile() in `build`, or {names}",
        )
    if not model.compiled and arguments.loss is None:
        raise ModelError(
            "A model must have a loss",
            "an uncompiled model and no `loss=`",
            "Compile it in `build`, or pass loss= and metrics=",
        )
    others = other_optimizers(model)
    if compiles_itself(model) and not _holds_its_optimizer(model):
        others.append("an optimizer that Keras' own compile() did not get")
    if others:
        raise ModelError(
            "A model must have one optimizer, which recipes replace",
            f"{type(model).__name__} with {', '.join(others)} besides",
            "Let one optimizer update all weights, or train the parts as models of their own",
        )
    if model.dtype_policy.name != policy_of_keras(recipe.policy):
        raise ModelError(
            f"A model must be built under the recipe's policy, {policy_of_keras(recipe.policy)}",
            model.dtype_policy.name,
            "Do not set a dtype policy in `build`: it is an axis of the search",
        )
    steps = compiled_by_user(model).get("steps_per_execution") or 1
    if steps != 1:
        raise ModelError(
            "steps_per_execution must be 1: the clock is read after every update",
            steps,
            "Leave it out of compile()",
        )


def _fresh(metrics: Any) -> Any:
    """Return copies of metrics under the names that they have in a fresh process.

    Keras numbers the names that it chooses, so the second `AUC()` of a process is `auc_1`; the copy
    is `auc` again. Losses need no copy: they hold no state, and Keras' copies of some lose
    arguments.
    """
    fresh = copied_metric(metrics)
    for metric in keras.tree.flatten(fresh):
        if isinstance(metric, keras.metrics.Metric):
            metric.name = without_number(metric)
    return fresh
