"""Script: the code of a recipe in plain Keras, without kbatch."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbatch import __version__
from kbatch.recipe_words import COMPILED
from kbatch.script import parts
from kbatch.script.parts import (
    COLUMNS,
    INDENT,
    Definition,
    Part,
    bracketed,
    call,
    comment,
    copied,
    docstring,
    together,
)

BUILD = '''\
def build_model():
    """Return a new model."""
    # TODO: build your model here.
    raise NotImplementedError("build_model() must return a keras.Model")'''
DATA = '''\
def load_data():
    """Return the arrays to train on and those to validate on, each as (x, y)."""
    # TODO: load your data here.
    raise NotImplementedError("load_data() must return (x, y), (x_val, y_val)")'''


@dataclass(frozen=True)
class Places:
    """What the code of a recipe takes from elsewhere. The defaults are marked with TODO."""

    title: str = "Train a model by a recipe"  # the first line of the code, without a full stop
    notes: tuple[str, ...] = ()  # sentences below it
    build: str = BUILD  # code that defines the function `build_model()`
    data: str = DATA  # code that defines the function `load_data()`
    definitions: tuple[Definition, ...] = ()  # the definitions that both use
    # loss and metrics of a model that is not compiled, as expressions by name
    compiled: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # other arguments of `train`, as text
    # sentences on what is to be done before it trains
    todo: tuple[str, ...] = (
        "TODO: pass the epochs; and loss= and metrics= if build_model() compiles no model.",
    )
    stop: tuple[str, ...] = ()  # statements that stop the script where something cannot be written
    epochs: str = "10"  # the passes over the data, as an expression
    seed: int = 0  # the seed of weights, order and dropout


# In the order of the code. Augmentation goes around mixing, and that around the training method.
SCRIPT_PARTS = {**parts.TRAINING_PARTS, **parts.OPTIMIZER_PARTS}
ARGUMENTS = '''\
Args:
    build_model: Function that returns a new model, compiled or not.
    x: Array, or a tuple or dict of arrays, of the examples.
    y: Array of the labels, or a tuple or dict of arrays.
    validation_data: Tuple (x, y) or (x, y, sample_weight).
    epochs: Number of passes over the data; 2.5, say, ends in the middle of one.
    loss: Loss of a model that build_model() does not compile. One that it compiles keeps its
        own loss, loss_weights, metrics and weighted_metrics.
    metrics: Metrics of a model that build_model() does not compile.
    seed: Integer, the seed of weights, order and dropout.
    sample_weight: Array of weights of the examples.
    class_weight: Dict of the weights of classes.
    callbacks: Callbacks of your own.

Returns:
    The model and the history of `fit`.
"""'''
SIGNATURE = (
    *("build_model", "x", "y", "validation_data", "epochs"),
    *("loss=None", "metrics=None"),
)
OPTIONAL = ("sample_weight=None", "class_weight=None", "callbacks=()")


def script(recipe: Any, places: Places) -> str:
    """Return the code that trains a recipe without kbatch."""
    part = together(write(recipe) for write in SCRIPT_PARTS.values())
    body = _train(recipe, part, places.seed)
    main = _main(places)
    wanted = [*part.definitions, *_always(recipe, part), *places.definitions]
    texts, imports = copied(dict.fromkeys(wanted))
    statements = ["import keras", "import math", *imports.values()]
    head = f"{_docstring(recipe, places)}\n\n{_sorted(statements)}"
    sections = [head, places.build, places.data, body, *texts, main]
    spaced = [_gap(*pair) + pair[1] for pair in itertools.pairwise(sections)]
    return "".join([head, *spaced, "\n"])


ALWAYS = ("DrawsOfTraining", "LastStep")  # callbacks


def _always(recipe: Any, part: Part) -> list[Definition]:
    """The definitions that every script uses."""
    batches = "growing_batches" if parts.grows(recipe) else "batches"
    callbacks = ["LearningRate"] if part.shares else []
    return [Definition(parts.FIT, name) for name in ("built", batches, *callbacks, *ALWAYS)]


def _docstring(recipe: Any, places: Places) -> str:
    written = (
        f"Written by kbatch {__version__}, which it does not need. "
        "The weights that remain are the last ones; kbatch keeps those of the value held."
    )
    return docstring((f"{places.title}.", f"The recipe: {recipe}.", written, *places.notes))


def _train(recipe: Any, part: Part, seed: int) -> str:
    """The function that trains."""
    lines = [
        bracketed("def train(", [*SIGNATURE, f"seed={seed}", *OPTIONAL], "):", 0),
        '    """Build a model, train it by the recipe, and return it.',
        "",
        textwrap.indent(ARGUMENTS, "    "),
    ]
    statements = [
        *part.settings,
        "keras.utils.set_random_seed(seed)",
        "model, kept = built(build_model, loss, metrics)",
        *_model_and_optimizer(recipe, part),
        *part.wrapped,
        bracketed(
            "model.compile(",
            ["optimizer=optimizer", *part.compilation, "**kept"],
            ")",
        ),
        *part.step,
        *_length(recipe, part),
        *_fit(recipe, part),
    ]
    return "\n".join([*lines, *(textwrap.indent(each, "    ") for each in statements)])


def _model_and_optimizer(recipe: Any, part: Part) -> list[str]:
    """Statements that change the model, and make an optimizer or take that of the model."""
    if recipe.optimizer == COMPILED:
        own = "optimizer = model.optimizer  # the one that build_model compiled the model with"
        return [own, *part.model]
    return [*part.model, call(parts.CLASSES[recipe.optimizer], part.optimizer, "optimizer = ")]


def _length(recipe: Any, part: Part) -> list[str]:
    """Statements about the number of updates, and the learning rate of each."""
    size = recipe.batch_size
    lines = ["examples = len(keras.tree.flatten(x)[0])"]
    if parts.grows(recipe):
        growth = recipe.growth
        given = (
            f'"{growth.kind}"',
            f"{growth.factor!r}",
            f"{size}",
            f"{recipe.accumulation_steps}",
        )
        lines += [
            call("growing_sizes", [*given, "round(epochs * examples, 6)"], "sizes = "),
            "updates = len(sizes)",
            "updates_of_pass = math.ceil(updates / epochs)",
        ]
    else:
        lines += [
            f"updates = math.ceil(round(epochs * examples / {size}, 6))",
            f"updates_of_pass = math.ceil(examples / {size})",
        ]
    if part.shares:
        lines.append(_rate(recipe, part))
    return lines


def _rate(recipe: Any, part: Part) -> str:
    """The function of the learning rate of an update."""
    lines = [
        "",
        "def rate(update):",
        '    """Return the learning rate of an update, counted from 0."""',
    ]
    if any("progress" in share for share in part.shares):
        lines.append(textwrap.indent(_progress(recipe), "    "))
    shares = " * ".join([repr(recipe.learning_rate), *part.shares])
    if 2 * INDENT + len(f"return {shares}") > COLUMNS:
        factors = [f"    {recipe.learning_rate!r}", *(f"    * {share}" for share in part.shares)]
        shares = "\n".join(["(", *factors, ")"])
    lines.append(textwrap.indent(f"return {shares}", "    "))
    return "\n".join([*lines, ""])


def _progress(recipe: Any) -> str:
    """The statement of how much of the training after warm-up is behind an update."""
    first = recipe.warmup_updates
    if parts.grows(recipe):
        return (
            f"first = sum(sizes[:{first}])\n"
            "done = sum(sizes[:update])\n"
            "progress = max(done - first, 0) / max(epochs * examples - first, 1)"
        )
    total = f"epochs * examples / {recipe.batch_size}"
    if not first:
        return f"progress = update / ({total})"
    return f"progress = max(update - {first}, 0) / max({total} - {first}, 1)"


def _fit(recipe: Any, part: Part) -> list[str]:
    """Statements that train."""
    steps = recipe.steps_per_update
    several = f"{steps} * " if steps > 1 else ""
    passes = [f"LearningRate(rate, passes={steps})"] if part.shares else []
    own = [*passes, *part.callbacks, "DrawsOfTraining()", f"LastStep({several}updates)"]
    callbacks = ["*callbacks", *own]
    if parts.grows(recipe):
        sizes = "sizes"
        if steps > 1:
            sizes = f"[size // {steps} for size in sizes for _ in range({steps})]"
        data = f"growing_batches(x, y, {sizes}, seed, sample_weight)"
    else:
        data = f"batches(x, y, {recipe.examples_per_step}, seed, sample_weight)"
    arguments = [
        data,
        "epochs=math.ceil(updates / updates_of_pass)",
        f"steps_per_epoch={several}updates_of_pass",
        "validation_data=validation_data",
        "class_weight=class_weight",
        _list("callbacks=", callbacks),
    ]
    return [call("model.fit", arguments, "history = "), "return model, history"]


def _list(before: str, items: Sequence[str]) -> str:
    """A list, which a formatter breaks into one item a line."""
    flat = f"{before}[{', '.join(items)}]"
    if 2 * INDENT + len(flat) < COLUMNS:
        return flat
    return "\n".join([f"{before}[", *(f"    {item}," for item in items), "]"])


def _main(places: Places) -> str:
    """What happens where the code is run as a script."""
    todo = [comment(each) for each in places.todo]
    arguments = [
        "build_model",
        "x",
        "y",
        "validation_data",
        f"epochs={places.epochs}",
        *(f"{name}={value}" for name, value in places.compiled.items()),
        *places.arguments,
    ]
    statements = [
        "(x, y), validation_data = load_data()",
        *todo,
        *places.stop,
        call("train", arguments, "model, history = "),
        "for name, values in history.history.items():\n    print(name, values[-1])",
    ]
    return 'if __name__ == "__main__":\n' + textwrap.indent("\n".join(statements), "    ")


def _gap(before: str, after: str) -> str:
    """The empty lines that a formatter puts between two sections."""
    is_block = any(each.startswith(("def ", "class ", "@", "if ")) for each in (before, after))
    return "\n\n\n" if is_block else "\n"


def _sorted(imports: Iterable[str]) -> str:
    """Import statements as a linter sorts them."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for statement in sorted(set(_merged(imports)), key=_order):
        groups[statement.split()[1].split(".")[0] in sys.stdlib_module_names].append(statement)
    return "\n\n".join("\n".join(group) for group in groups.values() if group)


def _order(statement: str) -> tuple[bool, str]:
    return statement.startswith("from"), statement.split()[1].lower()


def _merged(statements: Iterable[str]) -> Iterable[str]:
    """Statements of which those from one module are one."""
    names: dict[str, set[str]] = {}
    for statement in statements:
        if statement.startswith("from"):
            module, _, name = statement.partition(" import ")
            names.setdefault(module, set()).add(name)
        else:
            yield statement
    for module, imported in names.items():
        yield f"{module} import {', '.join(sorted(imported))}"
