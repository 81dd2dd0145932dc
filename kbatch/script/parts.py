"""Parts: what each field of a recipe adds to a script, and the text of the functions it calls."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import symtable
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.recipe_words import (
    AUGMENTATIONS,
    BY_PROGRESS,
    COMPILED,
    CONSTANT,
    FLOAT8,
    FLOAT16,
    PLAIN,
    PROXIMAL,
    SAM,
    policy_of_keras,
)

PACKAGE = "kbatch"


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a module of kbatch."""

    module: str  # name of the module
    name: str  # name of the definition


@dataclass(frozen=True)
class _Module:
    """The text of a module, by what its names stand for."""

    texts: dict[str, str]  # text of each definition, in their order
    imports: dict[str, str]  # statement of each imported name
    own: dict[str, Definition]  # definition of each name that is imported from kbatch


def copied(wanted: Iterable[Definition]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the texts of definitions and of all that they use, in an order that can be run."""
    found: dict[Definition, str] = {}
    imports: dict[str, str] = {}
    for definition in wanted:
        _copy(definition, found, imports)
    return tuple(found.values()), imports


def _copy(wanted: Definition, found: dict[Definition, str], imports: dict[str, str]) -> None:
    """Add a definition after those that it uses."""
    if wanted in found:
        return
    module = _read(wanted.module)
    found[wanted] = ""  # so that functions may use each other
    for name in _used(module.texts[wanted.name]):
        if name in module.texts:
            _copy(Definition(wanted.module, name), found, imports)
        elif name in module.own:
            _copy(module.own[name], found, imports)
        elif name in module.imports:
            imports[name] = module.imports[name]
    del found[wanted]
    found[wanted] = module.texts[wanted.name]


@functools.cache
def _read(name: str) -> _Module:
    text = _path(name).read_text(encoding="utf-8")
    lines = text.splitlines()
    module = _Module({}, {}, {})
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _note_imports(node, module)
        for defined in _defined(node):
            first = min([node.lineno, *(each.lineno for each in _decorators(node))])
            module.texts[defined] = "\n".join(lines[first - 1 : node.end_lineno])
    return module


def _path(name: str) -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    root = Path(spec.origin or "").parent if spec else Path()
    return root.joinpath(*name.split(".")[1:]).with_suffix(".py")


def _note_imports(node: ast.Import | ast.ImportFrom, module: _Module) -> None:
    for alias in node.names:
        bound = alias.asname or alias.name
        renamed = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.Import):
            module.imports[bound] = f"import {alias.name}{renamed}"
        elif (node.module or "").split(".")[0] == PACKAGE:
            module.own[bound] = Definition(node.module or "", alias.name)
        else:
            module.imports[bound] = f"from {node.module} import {alias.name}{renamed}"


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []


def _used(text: str) -> list[str]:
    """Return the names that a definition takes from outside, in their order, each once."""
    outside = set(_outside(symtable.symtable(text, PACKAGE, "exec")))
    names = (each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name))
    return list(dict.fromkeys(name for name in names if name in outside))


def _outside(scope: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names in a scope, and in those inside of it, that are no variables of functions."""
    is_top = scope.get_type() == "module"
    yield from (each.get_name() for each in scope.get_symbols() if is_top or each.is_global())
    for each in scope.get_children():
        yield from _outside(each)


@dataclass(frozen=True)
class Part:
    """What one field of a recipe adds to the function `train` of its code.

    Each attribute is a tuple of strings, pieces of code in the order of the function.
    """

    settings: tuple[str, ...] = ()  # statements before the model is built
    model: tuple[str, ...] = ()  # statements about the model that was built
    optimizer: tuple[str, ...] = ()  # arguments of the optimizer
    wrapped: tuple[str, ...] = ()  # statements about the optimizer that was made
    compilation: tuple[str, ...] = ()  # arguments of `compile`
    step: tuple[str, ...] = ()  # statements about the compiled model
    # factors of the learning rate of each update, as expressions of `update`
    shares: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()  # callbacks, as expressions
    definitions: tuple[Definition, ...] = ()  # the definitions that these use


def together(parts: Iterable[Part]) -> Part:
    """Return the pieces of several parts as one.

    Example:
    >>> together([Part(shares=("0.5",)), Part(shares=("0.1",))]).shares
    ('0.5', '0.1')
    """
    every = list(parts)
    names = [field.name for field in dataclasses.fields(Part)]
    return Part(**{name: sum((getattr(each, name) for each in every), ()) for name in names})


COLUMNS = 100
INDENT = 4


def call(function: str, arguments: Sequence[str], before: str = "", indent: int = INDENT) -> str:
    """Return a call on one line if it fits, else with one argument a line.

    Example:
    >>> call("keras.optimizers.SGD", ["0.1", "momentum=0.9"], "optimizer = ")
    'optimizer = keras.optimizers.SGD(0.1, momentum=0.9)'
    """
    return bracketed(f"{before}{function}(", arguments, ")", indent)


def bracketed(opening: str, items: Sequence[str], closing: str, indent: int = INDENT) -> str:
    """Return items in brackets, as a formatter breaks them."""
    inside = ", ".join(items)
    flat = f"{opening}{inside}{closing}"
    if indent + len(flat) <= COLUMNS and "\n" not in flat:
        return flat
    if 2 * INDENT + len(inside) <= COLUMNS and "\n" not in inside:
        return f"{opening}\n    {inside}\n{closing}"
    return "\n".join([opening, *(textwrap.indent(f"{item},", "    ") for item in items), closing])


def comment(text: str, indent: int = INDENT) -> str:
    """Return a sentence as a comment.

    Example:
    >>> print(comment("Left out: recompute."))
    # Left out: recompute.
    """
    lines = textwrap.wrap(printable(text), COLUMNS - indent - 2)
    return "\n".join(f"# {line}" for line in lines)


def docstring(paragraphs: Sequence[str]) -> str:
    """Return the docstring of a module."""
    told = [textwrap.fill(printable(each), COLUMNS) for each in paragraphs]
    text = "\n\n".join(told).replace('"""', "'''")
    raw = "r" if "\\" in text else ""
    return f'{raw}"""{text}\n"""'


def printable(text: str) -> str:
    r"""Return a text with the escapes of characters that do not belong into code.

    Example:
    >>> printable("a\x00b")
    'a\\x00b'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


LARS, SGD = "lars", "sgd"
CLASSES = {
    SGD: "keras.optimizers.SGD",
    "adam": "keras.optimizers.Adam",
    "adamw": "keras.optimizers.AdamW",
    LARS: "LARS",
    "lamb": "keras.optimizers.Lamb",
}
FIT = "kbatch.script.fit"
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


def beta_2(recipe: Any) -> Part:
    """The second beta of the Adam family, where it is not Keras' own."""
    if recipe.beta_2 == type(recipe).beta_2:
        return Part()
    return Part(optimizer=(f"beta_2={recipe.beta_2!r}",))


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
    definitions = (Definition(FIT, "check_passes"),)
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
        definitions=(Definition(FIT, "MovingAverage"),),
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


OPTIMIZER_PARTS: dict[str, Callable[[Any], Part]] = {
    "optimizer": optimizer,
    "learning_rate": learning_rate,
    "momentum": momentum,
    "beta_2": beta_2,
    "weight_decay": weight_decay,
    "clip_norm": clip_norm,
    "micro_batch_size": micro_batch_size,
    "accumulation": accumulation,
    "ema": ema,
    "warmup_updates": warmup_updates,
    "schedule": schedule,
}


AUGMENTATION, LOSSES = "kbatch.data.augmentation", "kbatch.models.losses"
LAYERS = {
    "flip": 'keras.layers.RandomFlip("horizontal", dtype="float32")',
    "shift": 'RandomShift(0.1, dtype="float32")',
    "contrast": 'keras.layers.RandomContrast(0.3, value_range=(0, 255), dtype="float32")',
}
MIXTURES = {"mixup": "mix_up", "cutmix": "cut_mix"}
MIXED = ("mixing_step", "mixed_loss", "mixed_metrics")


def batch_size(recipe: Any) -> Part:
    """The batch, which the script itself writes."""
    return Part()


def policy(recipe: Any) -> Part:
    """The dtype policy, set before the model is built."""
    if recipe.policy == FLOAT8:
        text = (
            "The Dense and EinsumDense layers without a dtype of their own multiply in float8, all "
            "others in mixed_bfloat16."
        )
        quantized = (
            "model.quantize(\n"
            '    "float8",\n'
            "    filters=lambda layer: (\n"
            "        type(layer) in (keras.layers.Dense, keras.layers.EinsumDense)\n"
            f'        and layer.dtype_policy.name == "{policy_of_keras(FLOAT8)}"\n'
            "    ),\n"
            ")"
        )
        return Part((_policy(recipe),), model=(comment(text), quantized))
    if recipe.policy != FLOAT16:
        return Part((_policy(recipe),))
    cast: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()
    if recipe.steps_per_update > 1:
        cast = ("_accumulate_in_float32(optimizer)",)
        definitions = (Definition("kbatch.models.policies", "_accumulate_in_float32"),)
    scaled = "optimizer = keras.optimizers.LossScaleOptimizer(optimizer)"
    return Part((_policy(recipe),), wrapped=(*cast, scaled), definitions=definitions)


def normalization(recipe: Any) -> Part:
    """Group normalization instead of batch normalization."""
    if recipe.normalization != "group":
        return Part()
    copied = Definition("kbatch.models.normalization", "group_normalized")
    return Part(model=("model = group_normalized(model, made={})",), definitions=(copied,))


def dropout_scale(recipe: Any) -> Part:
    """The factor on the rates of dropout."""
    if recipe.dropout_scale == 1:
        return Part()
    scaled = (
        "for layer in dropouts(model):\n"
        f"    layer.rate = scaled_dropout(layer.rate, {recipe.dropout_scale!r})"
    )
    of_layers = Definition("kbatch.models.scopes", "dropouts")
    of_rate = Definition("kbatch.rules.scaling", "scaled_dropout")
    return Part(model=(scaled,), definitions=(of_layers, of_rate))


def recompute(recipe: Any) -> Part:
    """A comment: Keras trains wrongly or not at all where it recomputes activations."""
    if recipe.recompute == "none":
        return Part()
    text = (
        f'Left out: recompute="{recipe.recompute}". Plain Keras cannot recompute the activations '
        "of a model with dropout or batch normalization and train it as before. The weights are "
        "the same without it, and the training needs more memory."
    )
    return Part(model=(comment(text),))


def label_smoothing(recipe: Any) -> Part:
    """Softened labels of a cross-entropy."""
    if not recipe.label_smoothing:
        return Part()
    copied = Definition(LOSSES, "smoothed")
    return Part(
        model=(f'kept["loss"] = smoothed(kept["loss"], {recipe.label_smoothing!r})',),
        definitions=(copied,),
    )


def jit_compile(recipe: Any) -> Part:
    """Whether XLA compiles the train step."""
    return Part(compilation=(f"jit_compile={recipe.jit_compile}",))


def training(recipe: Any) -> Part:
    """The train step of a method."""
    method = recipe.method
    if method.name == PLAIN:
        return Part()
    step = f"{method.name}_step"
    numbers = f"{method.amount!r}" + ("" if method.name == SAM else f", {method.inner_steps}")
    made = f"model.train_step = {step}(model, batch_gradient(model), {numbers})"
    copied = [Definition("kbatch.models.train_step", name) for name in (step, "batch_gradient")]
    return Part(step=(made,), definitions=tuple(copied))


def augmentation(recipe: Any) -> Part:
    """Augmentation within the train step; a pipeline of the user's is left to him."""
    if recipe.augmentation == "none":
        return Part()
    seeded = "keras.utils.set_random_seed(seed)"
    applied = "model.train_step = augmented_step(model.train_step, augmentation)"
    augmented = Definition(AUGMENTATION, "augmented_step")
    if recipe.augmentation not in AUGMENTATIONS:
        text = (
            f'TODO: the layers of the augmentation "{recipe.augmentation}", which was registered '
            "with kbatch.register_augmentation. What mixes examples is left out. Where labels are "
            'masks, a layer that moves pictures must take {"images": …, "segmentation_masks": …}, '
            "as Keras' do; what it fills from outside has the label 0, where kbatch leaves it out "
            "of the loss if that takes weights of places."
        )
        stop = (
            "if not augmentation:\n"
            '    raise NotImplementedError("Write the layers of the augmentation above")'
        )
        todo = (comment(text), "augmentation = []", stop, applied)
        return Part(step=todo, definitions=(augmented,))
    words = recipe.augmentation.split("_")
    mixtures = [MIXTURES[word] for word in words if word in MIXTURES]
    layers = [LAYERS[word] for word in words if word in LAYERS]
    steps, definitions = [seeded], []
    if layers:
        steps.append("augmentation = [\n" + "".join(f"    {each},\n" for each in layers) + "]")
        definitions.append(augmented)
    if "shift" in words:
        definitions.append(Definition(AUGMENTATION, "RandomShift"))
    for mixture in mixtures:
        steps += [
            "shares = keras.random.SeedGenerator()",
            f"model.train_step = mixing_step(model.train_step, lambda x: {mixture}(x, shares))",
            "model.compute_loss = mixed_loss(model.compute_loss)",
            "model.compute_metrics = mixed_metrics(model.compute_metrics)",
        ]
        definitions.append(Definition(AUGMENTATION, mixture))
        definitions += [Definition(LOSSES, name) for name in MIXED]
    if layers:
        steps.append(applied)
    return Part(step=tuple(steps), definitions=tuple(definitions))


def batch_schedule(recipe: Any) -> Part:
    """The growth of the batch, and of the rate with it; by measurements it is left out."""
    if recipe.batch_schedule == CONSTANT:
        return Part()
    if grows(recipe):
        power = "" if recipe.optimizer == "sgd" else " ** 0.5"
        return Part(
            shares=(f"(sizes[update] / {recipe.batch_size}){power}",),
            definitions=(Definition(FIT, "growing_sizes"),),
        )
    text = (
        f'Left out: batch_schedule="{recipe.batch_schedule}", whose sizes follow from measurements '
        f"in the training. The batch is {recipe.batch_size} from the beginning."
    )
    return Part(step=(comment(text),))


def grows(recipe: Any) -> bool:
    """Tell whether the code lets the batch of a recipe grow."""
    return recipe.growth.kind in BY_PROGRESS


def _policy(recipe: Any) -> str:
    return f'keras.config.set_dtype_policy("{policy_of_keras(recipe.policy)}")'


TRAINING_PARTS: dict[str, Callable[[Any], Part]] = {
    "batch_size": batch_size,
    "policy": policy,
    "normalization": normalization,
    "dropout_scale": dropout_scale,
    "recompute": recompute,
    "label_smoothing": label_smoothing,
    "jit_compile": jit_compile,
    "training": training,
    "augmentation": augmentation,
    "batch_schedule": batch_schedule,
}
