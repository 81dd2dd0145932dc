"""Identity: a digest of a build function and all of the user's code that it reaches, to tell one model from another.

What cannot be read the same way in every process only costs a measurement: its digest is another one each time.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

INSTALLED = tuple(str(Path(path).resolve()) for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib", "purelib", "platlib"))


def digest(value: Any) -> str:
    """A digest that changes with the code, constants, defaults and closures that a function reaches."""
    walk = _Walk()
    walk.add(value)
    return walk.hash.hexdigest()


class _Walk:
    """What was reached so far."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []  # so that no address is used twice

    def add(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return self._note("plain", repr(value))
        if id(value) in self._seen:
            return self._note("again", str(self._seen[id(value)]))
        self._seen[id(value)] = len(self._seen)
        self._held.append(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, type) or inspect.isroutine(value):
            return self._routine_or_class(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, functools.partial):
            return self._all("partial", value.func, value.args, value.keywords)
        if isinstance(value, Mapping):
            return self._all("mapping", *(part for pair in sorted(value.items(), key=repr) for part in pair))
        if isinstance(value, (set, frozenset)):
            return self._all("set", *sorted(value, key=repr))
        if isinstance(value, (list, tuple)):
            return self._all(type(value).__name__, *value)
        if isinstance(value, np.ndarray):
            return self._all("array", str(value.dtype), str(value.shape), value.tobytes())
        try:
            if hasattr(value, "get_config"):
                return self._all("configured", type(value), value.get_config())
            if not _is_own(type(value)):
                return self._note("pickle", hashlib.sha256(cloudpickle.dumps(value)).hexdigest())
        except Exception:  # a lock, a tensor, a file: what cannot be read the same way again is another thing each time
            return self._note("unreadable", uuid.uuid4().hex)
        self._all("instance", type(value), getattr(value, "__dict__", None))  # a pickle holds the name of a class, not its code

    def _module(self, module: types.ModuleType) -> None:
        """The text of a user's module and of the modules that it holds; of an installed one its version."""
        if _is_installed(module):
            return self._note("installed", f"{module.__name__} {_version(module.__name__)}")
        self._note("module", _source_of_module(module))
        for name in sorted(vars(module)):
            part = vars(module)[name]
            if isinstance(part, types.ModuleType):
                self.add(part)
            elif inspect.isroutine(part) or isinstance(part, type):
                home = sys.modules.get(getattr(part, "__module__", None) or "")
                if home is not None and home is not module:
                    self.add(home)

    def _routine_or_class(self, value: Any) -> None:
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        if isinstance(value, types.MethodType):
            return self._all("method", value.__func__, value.__self__)
        if module is not None and _is_installed(module) and getattr(value, "__closure__", None) is None:
            return self._note("installed", f"{value.__module__}.{value.__qualname__} {_version(value.__module__)}")
        if isinstance(value, type):
            return self._all("class", value.__qualname__, *value.__bases__, *_members(value))
        if not hasattr(value, "__code__"):
            return self._note("builtin", repr(value))
        self._all("function", value.__code__, value.__defaults__, value.__kwdefaults__)
        self._all("closure", *(_contents(cell) for cell in value.__closure__ or ()))
        for name in sorted(_names(value.__code__)):
            if name in value.__globals__:
                self._all("global", name, value.__globals__[name])

    def _code(self, code: types.CodeType) -> None:
        self._all("code", code.co_code, code.co_names, code.co_varnames, code.co_consts)

    def _all(self, kind: str, *values: Any) -> None:
        self._note(kind, str(len(values)))
        for value in values:
            self.add(value)

    def _note(self, kind: str, text: str) -> None:
        self.hash.update(f"{kind}:{len(text)}:{text};".encode())


def _is_installed(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return module.__name__ != "__main__" and (file is None or str(Path(file).resolve()).startswith(INSTALLED))


def _is_own(kind: type) -> bool:
    """Whether a class is the user's own, with attributes that can be looked at."""
    module = sys.modules.get(kind.__module__)
    return hasattr(kind, "__dict__") and "__slots__" not in vars(kind) and not (module is not None and _is_installed(module))


def _version(name: str) -> str:
    return str(getattr(sys.modules.get(name.split(".")[0]), "__version__", ""))


def _source_of_module(module: types.ModuleType) -> str:
    try:
        return Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return module.__name__


def _members(value: type) -> list[Any]:
    own = {name: part for name, part in vars(value).items() if not name.startswith("__") or name in ("__init__", "__call__")}
    return [part for name in sorted(own) for part in (name, getattr(own[name], "__func__", own[name]))]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)
