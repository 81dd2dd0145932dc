"""The parts of a recipe that are settings of its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbatch.code.definitions import Definition
from kbatch.code.layout import comment
from kbatch.code.part import Part
from kbatch.recipe_words import COMPILED, FLOAT8, FLOAT16, PROXIMAL

LARS, SGD = "lars", "sgd"
CLASSES = {
    SGD: "keras.optimizers.SGD",
    "adam": "keras.optimizers.Adam",
    "adamw": "keras.optimizers.AdamW",
    LARS: "LARS",
    "lamb": "keras.optimizers.Lamb",
}
CALLBACKS = "kbatch.plain_keras.callbacks"
STEPS = "10.0 ** -sum(progress >= share for share in (1 / 3, 2 / 3, 8 / 9))"


def optimizer(recipe: Any) -> Part:
    """The class of the optimizer, which the script calls; LARS is copied."""
    copied = (Definition("kbatch.models.optimizers", "LARS"),) if recipe.optimizer == LARS else ()
    return Part(definitions=copied)


def learning_rate(recipe: Any) -> Part:
    """The learning rate, as the rule of the search has scaled it."""
    if recipe.optimizer == COMPILED:
        return Part()
    return Part(optimizer=(f"learning_rate={recipe.learning_rate!r}",))


def momentum(recipe: Any) -> Part:
    """Momentum, or the first beta of the Adam family."""
    if recipe.optimizer == COMPILED:
        return Part()
    name = "momentum" if recipe.optimizer in (SGD, LARS) else "beta_1"
    return Part(optimizer=(f"{name}={recipe.momentum!r}",))


def weight_decay(recipe: Any) -> Part:
    """Decoupled weight decay; that of LARS is inside of its ratio."""
    if recipe.optimizer == COMPILED or (not recipe.weight_decay and recipe.optimizer != "adamw"):
        return Part()
    name = "l2" if recipe.optimizer == LARS else "weight_decay"
    return Part(optimizer=(f"{name}={recipe.weight_decay!r}",))


def clip_norm(recipe: Any) -> Part:
    """The largest norm of the whole gradient."""
    if recipe.clip_norm is None:
        return Part()
    return Part(optimizer=(f"global_clipnorm={recipe.clip_norm!r}",))


def micro_batch_size(recipe: Any) -> Part:
    """Passes per update, which Keras accumulates."""
    passes = recipe.accumulation_steps
    if passes == 1:
        return Part()
    if recipe.steps_per_update == 1:
        text = (
            f"Left out: the {passes} passes of {recipe.micro_batch_size} examples. The train step "
            "here takes a batch at once, which needs more memory. Batch normalization sees all "
            "of it."
        )
        return Part(step=(comment(text),))
    text = f"Keras averages the gradients of {passes} passes."
    checked = 'check_passes(model, kept.get("loss"), x, y, sample_weight)'
    definitions = (Definition("kbatch.plain_keras.compilation", "check_passes"),)
    accumulation = f"gradient_accumulation_steps={passes}"
    if recipe.optimizer != COMPILED:
        return Part(
            optimizer=(accumulation,),
            wrapped=(comment(text),),
            step=(checked,),
            definitions=definitions,
        )
    schedules = (
        "A schedule of its own would count passes: stretch its steps by the number of passes."
    )
    rebuilt = (
        'inner = getattr(optimizer, "inner_optimizer", optimizer)\n'
        "settings = inner.get_config()\n"
        f'settings["gradient_accumulation_steps"] = {passes}\n'
        "optimizer = type(inner).from_config(settings)"
    )
    return Part(
        wrapped=(comment(f"{text} {schedules}"), rebuilt), step=(checked,), definitions=definitions
    )


def accumulation(recipe: Any) -> Part:
    """How passes make one gradient, which `micro_batch_size` writes."""
    return Part()


def ema(recipe: Any) -> Part:
    """The moving average of the weights, over whole updates."""
    if recipe.ema is None:
        return Part()
    by_keras = recipe.steps_per_update == 1 and recipe.method.name != PROXIMAL
    # Keras averages in the weights' type, and its callback finds no average of a float8 scale
    by_keras = by_keras and recipe.policy not in (FLOAT16, FLOAT8)
    if by_keras and recipe.optimizer != COMPILED:
        return Part(
            optimizer=("use_ema=True", f"ema_momentum={recipe.ema!r}"),
            callbacks=("keras.callbacks.SwapEMAWeights()",),
        )
    return Part(
        callbacks=(f"MovingAverage({recipe.ema!r}, passes={recipe.steps_per_update})",),
        definitions=(Definition(CALLBACKS, "MovingAverage"),),
    )


def warmup_updates(recipe: Any) -> Part:
    """Linear warm-up over updates."""
    if not recipe.warmup_updates:
        return Part()
    return Part(shares=(f"min((update + 1) / {recipe.warmup_updates + 1}, 1.0)",))


def schedule(recipe: Any) -> Part:
    """The decay of the learning rate over the training, after warm-up."""
    shares = {
        "cosine": "0.5 * (1 + math.cos(math.pi * progress))",
        "steps": STEPS,
    }
    return Part(shares=(shares[recipe.schedule],)) if recipe.schedule in shares else Part()


PARTS: dict[str, Callable[[Any], Part]] = {
    "optimizer": optimizer,
    "learning_rate": learning_rate,
    "momentum": momentum,
    "weight_decay": weight_decay,
    "clip_norm": clip_norm,
    "micro_batch_size": micro_batch_size,
    "accumulation": accumulation,
    "ema": ema,
    "warmup_updates": warmup_updates,
    "schedule": schedule,
}
