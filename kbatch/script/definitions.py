"""Definitions: functions and classes of kbatch that a script copies."""

from __future__ import annotations

import ast
import functools
import importlib.util
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "kbatch"


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a module of kbatch.

    Attributes:
        module: String, name of the module.
        name: String, name of the definition.
    """

    module: str
    name: str


@dataclass(frozen=True)
class _Module:
    """The text of a module, by what its names stand for.

    Attributes:
        texts: Text of each definition, in their order.
        imports: Statement of each imported name.
        own: Definition of each name that is imported from kbatch.
    """

    texts: dict[str, str]
    imports: dict[str, str]
    own: dict[str, Definition]


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
