"""Changes: what to change in the lines of the user's own script to train by a recipe."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED, TUNED_OPTIMIZERS
from kbatch.script.parts import CLASSES, together
from kbatch.script.script import SCRIPT_PARTS

WRITTEN = frozenset(
    ("batch_size", "micro_batch_size", "optimizer", "learning_rate", "warmup_updates", "momentum")
    + ("beta_2", "weight_decay", "clip_norm", "policy", "jit_compile", "accumulation")
)
MODULES = ("re", "regex", "sass")  # whose `compile` is no model's
OF_MODELS = ("fit", "evaluate", "predict")  # methods whose `batch_size` is no dataset's
BATCHING = ("batch", "padded_batch", "ragged_batch")  # methods of a dataset


@dataclass(frozen=True)
class Changes:
    """The changes of a script.

    Attributes:
        diff: String, a unified diff; empty if nothing was found to change.
        others: Tuple of sentences, what the diff does not hold.
    """

    diff: str
    others: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*([self.diff] if self.diff else []), *self.others])


@dataclass(frozen=True)
class _Edit:
    """A text that takes the place of a part of the source, by the offsets of its bytes."""

    start: int
    end: int
    text: str


def changes_of(
    source: str,
    name: str,
    line: int,
    today: Recipe,
    recipe: Recipe,
    gets_batches: bool = False,
) -> Changes:
    """Return the changes that let a script train by a recipe.

    Args:
        source: String, the script.
        name: String, its name in the diff.
        line: Integer, a line of its call of `fit`.
        today: `Recipe` that the script trains by.
        recipe: `Recipe` to train by.
        gets_batches: Boolean, whether `fit` gets a dataset of batches, and ignores `batch_size`.
    """
    if recipe == today:
        return Changes("", ("Nothing is to be changed.",))
    try:
        script = _Script(source, line, gets_batches)
    except SyntaxError:  # of a notebook's cell with commands of its own
        return Changes("", tuple(_in_words(today, recipe)))
    edits, others = [], []
    for found, words in (
        script.batch(today, recipe),
        script.compilation(today, recipe),
        script.policy(today, recipe),
    ):
        edits += found
        others += words
    others += _left(today, recipe)
    changed = _applied(source, [*edits, *script.imports()])
    try:
        ast.parse(changed)
    except SyntaxError:  # of a line that is written in a way unknown here
        return Changes("", tuple(_in_words(today, recipe)))
    return Changes(_diff(source, changed, name), tuple(others))


TUNER = "Give its tuner kbatch.HyperModel(…) over the hypermodel, and objective=kbatch.objective()."


def changes_of_tuner(source: str, name: str, line: int, arguments: Mapping[str, Any]) -> Changes:
    """Return the changes that let a tuner of a script search by kbatch's score.

    Args:
        source: String, the script.
        name: String, its name in the diff.
        line: Integer, a line of the call that makes the tuner.
        arguments: What `kbatch.HyperModel` is given besides the hypermodel and the space.
    """
    try:
        script = _Script(source, line, gets_batches=False)
    except SyntaxError:
        return Changes("", (TUNER,))
    edits = script.tuner(arguments)
    if not edits:
        return Changes("", (TUNER,))
    return Changes(_diff(source, _applied(source, edits), name), ())


def _diff(source: str, changed: str, name: str) -> str:
    lines = [text.splitlines(keepends=True) for text in (source, changed)]
    return "".join(difflib.unified_diff(lines[0], lines[1], name, name, n=1))


class _Script:
    """The syntax of a script: its call of `fit`, and what stands around it."""

    def __init__(self, source: str, line: int, gets_batches: bool) -> None:
        self._gets_batches, self._lacks_keras = gets_batches, False
        self._source = source.encode()
        self._tree = ast.parse(source)
        self._starts = [0]
        for text in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(text))
        self._calls = [each for each in ast.walk(self._tree) if isinstance(each, ast.Call)]
        fits = [each for each in self._calls if _method(each) == "fit"]
        around = [each for each in fits if each.lineno <= line <= (each.end_lineno or line)]
        self._fit = around[-1] if around else None
        self._line = line

    def batch(self, today: Recipe, recipe: Recipe) -> tuple[list[_Edit], list[str]]:
        """The size of the batches that `fit` gets."""
        old, new = today.batch_size, recipe.examples_per_pass
        if old == new:
            return [], []
        given = _keyword(self._fit, "batch_size")
        if given is None and self._fit is not None and len(self._fit.args) > 2:
            given = self._fit.args[2]
        if given is not None and not self._gets_batches:
            return self._changed(given, old, new)
        sizes = list(self._sizes(old)) if self._gets_batches else []
        if sizes:
            edits = [edit for each in sizes for edit in self._changed(each, old, new)[0]]
            return list(dict.fromkeys(edits)), []
        if self._fit is not None and not self._gets_batches:
            return [self._added(self._fit, f"batch_size={new}")], []
        return [], [f"Let the data give batches of {new} instead of {old}."]

    def compilation(self, today: Recipe, recipe: Recipe) -> tuple[list[_Edit], list[str]]:
        """The optimizer, and XLA."""
        words = []
        compiled = self._compile()
        edits = []
        passes = recipe.accumulation_steps
        if recipe.optimizer != COMPILED:
            text = self._optimizer(recipe)
            edit = None
            if compiled is not None and CLASSES[recipe.optimizer].startswith("keras."):
                edit = self._replaced_optimizer(compiled, text)
            edits += [] if edit is None else [edit]
            words += [f"Compile with optimizer={text}."] if edit is None else []
        elif passes > 1:
            words.append(f"Give the optimizer gradient_accumulation_steps={passes}.")
        if recipe.jit_compile != today.jit_compile:
            text = f"jit_compile={recipe.jit_compile}"
            given = _keyword(compiled, "jit_compile")
            if compiled is None:
                words.append(f"Compile with {text}.")
            elif given is not None:
                edits.append(self._edit(given, str(recipe.jit_compile)))
            else:
                edits.append(self._added(compiled, text))
        return edits, words

    def policy(self, today: Recipe, recipe: Recipe) -> tuple[list[_Edit], list[str]]:
        """The dtype policy, set behind the imports."""
        if recipe.policy == today.policy:
            return [], []
        setters = ("set_dtype_policy", "set_global_policy")
        calls = [each for each in self._calls if _method(each) in setters and each.args]
        if calls:
            return [self._edit(calls[0].args[0], f'"{recipe.policy}"')], []
        at = self._starts[self._head()]
        text = f'{self._keras()}.config.set_dtype_policy("{recipe.policy}")\n'
        return [_Edit(at, at, text)], []

    def tuner(self, arguments: Mapping[str, Any]) -> list[_Edit]:
        """The hypermodel and the objective of the tuner that is made in the line."""
        around = [
            each
            for each in self._calls
            if each.lineno <= self._line <= (each.end_lineno or each.lineno)
            and _keyword(each, "objective") is not None
        ]
        if not around:
            return []
        call = around[-1]
        model = _keyword(call, "hypermodel") or (call.args[0] if call.args else None)
        objective = _keyword(call, "objective")
        if model is None or objective is None:
            return []
        space = f"kbatch.Space(optimizer={TUNED_OPTIMIZERS!r})"
        given = [f"{name}={value!r}" for name, value in arguments.items()]
        words = ", ".join([ast.unparse(model), space, *given])
        at = self._starts[self._head()]
        return [
            self._edit(model, f"kbatch.HyperModel({words})"),
            self._edit(objective, "kbatch.objective()"),
            _Edit(at, at, "import kbatch\n"),
        ]

    def _optimizer(self, recipe: Recipe) -> str:
        """The call that makes the optimizer of a recipe."""
        part = together(write(recipe) for write in SCRIPT_PARTS.values())
        keras = self._keras()
        rate, warmup = repr(recipe.learning_rate), recipe.warmup_updates
        arguments = list(part.optimizer)
        if warmup and recipe.learning_rate is not None:
            first = float(f"{recipe.learning_rate / (warmup + 1):.6g}")
            steps = warmup * recipe.accumulation_steps
            rate = (
                f"{keras}.optimizers.schedules.CosineDecay({first!r}, 1, alpha=1.0, "
                f"warmup_target={recipe.learning_rate!r}, warmup_steps={steps})"
            )
        arguments = [
            f"learning_rate={rate}" if each.startswith("learning_rate=") else each
            for each in arguments
        ]
        name = CLASSES[recipe.optimizer].replace("keras.", f"{keras}.", 1)
        return f"{name}({', '.join(arguments)})"

    def _keras(self) -> str:
        """How the script names Keras."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    if each.name == "keras" or each.name == "tensorflow.keras":
                        return each.asname or each.name
            if isinstance(node, ast.ImportFrom) and node.module == "tensorflow":
                for each in node.names:
                    if each.name == "keras":
                        return each.asname or "keras"
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    if each.name == "tensorflow":
                        return f"{each.asname or each.name}.keras"
        self._lacks_keras = True
        return "keras"

    def imports(self) -> list[_Edit]:
        """The import that a change needs and the script lacks."""
        if not self._lacks_keras:
            return []
        at = self._starts[self._head()]
        return [_Edit(at, at, "import keras\n")]

    def _head(self) -> int:
        """The last line of the imports at the top; 0 without any."""
        last = 0
        for each in self._tree.body:
            is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            if not is_text and not isinstance(each, (ast.Import, ast.ImportFrom)):
                break
            last = each.end_lineno or last
        return last

    def _compile(self) -> ast.Call | None:
        """The last `compile` of the model before its `fit`, else the last one, or the only one."""
        found = [each for each in self._calls if _method(each) == "compile"]
        found = [each for each in found if _receiver(each) not in MODULES]
        own = [each for each in found if _receiver(each) == _receiver(self._fit)]
        if not own and len(found) == 1:
            return found[0]
        own.sort(key=lambda each: each.lineno)
        before = [each for each in own if each.lineno <= self._line]
        return [None, *own, *before][-1]

    def _replaced_optimizer(self, compiled: ast.Call, text: str) -> _Edit | None:
        given = _keyword(compiled, "optimizer")
        if given is None and compiled.args:
            given = compiled.args[0]
        if given is None:
            return self._added(compiled, f"optimizer={text}")
        return None if isinstance(given, ast.Starred) else self._edit(given, text)

    def _sizes(self, old: int) -> Iterator[ast.expr]:
        """Where data are made batches of the old size."""
        for each in self._calls:
            if _method(each) in OF_MODELS:
                continue
            argument = _keyword(each, "batch_size")
            if argument is None and _method(each) in BATCHING and each.args:
                argument = each.args[0]
            if argument is not None and self._value(argument) == old:
                yield argument

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        assigned = self._assigned(node)
        return assigned.value if isinstance(assigned, ast.Constant) else None

    def _assigned(self, node: ast.expr) -> ast.expr | None:
        """The value that the name was given, if it was given one only once."""
        if not isinstance(node, ast.Name):
            return None
        found = []
        for each in ast.walk(self._tree):
            if not isinstance(each, ast.Assign):
                continue
            if any(isinstance(name, ast.Name) and name.id == node.id for name in each.targets):
                found.append(each.value)
        return found[0] if len(found) == 1 else None

    def _changed(self, node: ast.expr, old: int, new: int) -> tuple[list[_Edit], list[str]]:
        """The edit of a number, or of the line that gives it its name."""
        assigned = self._assigned(node)
        if isinstance(assigned, ast.Constant) and assigned.value == old:
            return [self._edit(assigned, str(new))], []
        if isinstance(node, ast.Constant) or assigned is None:
            return [self._edit(node, str(new))], []
        return [], [f"Let {ast.unparse(node)} be {new} instead of {old}."]

    def _edit(self, node: ast.expr, text: str) -> _Edit:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        start = self._starts[node.lineno - 1] + node.col_offset
        return _Edit(start, self._starts[end_line - 1] + end, text)

    def _added(self, call: ast.Call, text: str) -> _Edit:
        """One more argument at the end of a call."""
        closing = self._starts[(call.end_lineno or 1) - 1] + (call.end_col_offset or 1) - 1
        last = [*call.args, *(each.value for each in call.keywords)]
        ends = [self._edit(each, "").end for each in last]
        between = self._source[max(ends, default=closing) : closing].decode()
        has_comma = "," in re.sub("#.*", "", between)
        before = ", " if last and not has_comma else ""
        return _Edit(closing, closing, f"{before}{text}")


def _method(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else ""


def _receiver(call: ast.Call | None) -> str:
    """The object whose method is called, as it is written."""
    function = None if call is None else call.func
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def _keyword(call: ast.Call | None, name: str) -> ast.expr | None:
    keywords = [] if call is None else call.keywords
    return next((each.value for each in keywords if each.arg == name), None)


def _applied(source: str, edits: list[_Edit]) -> str:
    changed = source.encode()
    for edit in sorted(edits, key=lambda each: each.start, reverse=True):
        changed = changed[: edit.start] + edit.text.encode() + changed[edit.end :]
    return changed.decode()


def _left(today: Recipe, recipe: Recipe) -> list[str]:
    """Sentences on what no line of a script can say."""
    names = [
        name
        for name, value in recipe.to_dict().items()
        if name not in WRITTEN and value != today.to_dict().get(name)
    ]
    if not names:
        return []
    words = ", ".join(f"{name}={getattr(recipe, name)!r}" for name in names)
    return [f"Not in these lines: {words}. `kbatch export` writes them as plain Keras."]


def _in_words(today: Recipe, recipe: Recipe) -> Iterator[str]:
    yield f"Train with {recipe} instead of {today}; `kbatch export` writes it as plain Keras."
