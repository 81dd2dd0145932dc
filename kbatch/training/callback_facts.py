"""Facts of the user's callbacks: a project remembers them, and a resumed search must have them."""

from __future__ import annotations

import inspect
import json
import os
import types
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from kbatch.callbacks.user_callbacks import belongs_to_trial
from kbatch.errors import ProjectChangedError
from kbatch.models.maker import described
from kbatch.records.project import Project

FACT = "callbacks"
UNCOMPARED = ("self", "args", "kwargs", "verbose")  # parameters that change no training


def facts_of(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the names and settings of callbacks, as JSON can hold them.

    TensorBoard and kbatch's own callbacks only look on, and may come and go.

    Args:
        callbacks: The user's callbacks.
    """
    facts = [
        {"name": type(each).__name__, "settings": _settings(each)}
        for each in callbacks
        if not _only_looks_on(each)
    ]
    read: list[dict[str, Any]] = json.loads(json.dumps(facts))
    return read


def names_of(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of callbacks in words."""
    return ", ".join(str(each["name"]) for each in facts)


def agree(project: Project, callbacks: Sequence[Any]) -> None:
    """Refuse callbacks other than the project's, by name, and keep those of a new one.

    Args:
        project: The project.
        callbacks: The user's callbacks.

    Raises:
        ProjectChangedError: If one is missing, is new, or has other settings.
    """
    before, now = project.facts().get(FACT), facts_of(callbacks)
    if before is None or (before != now and not project.store.records()):
        project.note({FACT: now})
        return
    changed = _differences(before, now)
    if changed:
        raise ProjectChangedError(
            f"A search must have the callbacks that it was started with ({project.folder})",
            "; ".join(changed),
            f"Pass callbacks=[{names_of(before)}], made as they were, or start in another folder",
        )


def _differences(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[str]:
    old, new = (Counter(each["name"] for each in facts) for facts in (before, now))
    changed = [f"no {name}" for name in (old - new).elements()]
    changed += [f"{name}, which it did not have" for name in (new - old).elements()]
    for name in old & new:
        was, is_now = (_settings_of(facts, name) for facts in (before, now))
        changed += [f"{name} with other settings: {_apart(was, is_now)}"] * (was != is_now)
    return changed


def _settings_of(facts: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The settings of all callbacks of a class, in their order."""
    return [dict(each["settings"]) for each in facts if each["name"] == name]


def _apart(was: Sequence[Mapping[str, Any]], is_now: Sequence[Mapping[str, Any]]) -> str:
    pairs = zip(was, is_now, strict=False)
    told = [
        f"{name} was {one.get(name)!r} and is now {other.get(name)!r}"
        for one, other in pairs
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    return ", ".join(told)


def _only_looks_on(callback: Any) -> bool:
    own = type(callback).__module__.split(".")[0] == "kbatch"
    return own or isinstance(callback, keras.callbacks.TensorBoard) or belongs_to_trial(callback)


def _settings(callback: Any) -> dict[str, Any]:
    """The parameters that a callback was made with, as far as it keeps them."""
    found = {}
    for name in inspect.signature(type(callback).__init__).parameters:
        value = vars(callback).get(name, vars(callback).get(f"_{name}"))
        path = isinstance(value, os.PathLike) or (isinstance(value, str) and os.sep in value)
        if name not in UNCOMPARED and value is not None and not path:
            found[name] = _said(value)
    return found


def _said(value: Any) -> Any:
    """A setting in words, equal for equal settings of other processes."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        held = [each for each in (*cells, *(value.__defaults__ or ())) if _is_plain(each)]
        text = repr((_parts(value.__code__), held))
        return f"{value.__name__} {zlib.crc32(text.encode()):08x}"
    return described(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    """What a function does: its code and constants, without addresses and lines of files."""
    constants = [
        _parts(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts
    ]
    return (code.co_code.hex(), code.co_names, constants)
