"""User's code: where it is imported from, and the line that a warning points to."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any

from kbatch.errors import ModelError

# Not even the user's own code takes these from his folder.
LIBRARIES = frozenset(
    ("kbatch", "tensorflow", "keras", "keras_tuner", "kt_legacy", "tensorboard", "numpy", "scipy")
    + ("pandas", "sklearn", "optuna", "h5py", "PIL", "altair", "vl_convert", "jinja2", "tabulate")
    + ("typer", "click", "rich", "loky", "cloudpickle", "msgspec", "psutil", "platformdirs", "ray")
    + ("tensorflow_datasets", "pynvml", "google", "absl", "ml_dtypes", "optree", "namex")
)
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Finder(MetaPathFinder):
    """Finds modules in the user's folder that he names, or that a module of that folder imports."""

    def __init__(self, folder: str, named: Iterable[str] = ()) -> None:
        self.folder, self.named = os.path.realpath(folder), set(named)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the module's place, or `None` if others shall look for it."""
        if path is not None or fullname in LIBRARIES or fullname in sys.stdlib_module_names:
            return None
        if fullname not in self.named and not self._is_own(_importing_file()):
            return None
        spec = PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:  # a folder without __init__.py has no origin
            self.named.add(fullname)  # a worker may unpickle what is defined in it
            return spec
        return None

    def _is_own(self, file: str) -> bool:
        inside = os.path.realpath(file).startswith(os.path.join(self.folder, ""))
        return os.path.isabs(file) and inside and not any(each in file for each in INSTALLED)


def use_folder(folder: str | os.PathLike[str], named: Iterable[str] = ()) -> None:
    """Let the user's modules be imported from a folder, once."""
    finder = users_finder()
    if finder is not None and finder.folder == os.path.realpath(folder):
        finder.named.update(named)
        return
    if finder is not None:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, Finder(os.fspath(folder), named))


def name_module(module: str) -> None:
    """Let a module that the user named be imported from his folder, if there is one."""
    finder = users_finder()
    if finder is not None:
        finder.named.add(module.partition(".")[0])


def users_finder() -> Finder | None:
    """Return the finder of this process; `None` outside of a command."""
    return next((each for each in sys.meta_path if isinstance(each, Finder)), None)


def travelling() -> tuple[str, list[str]] | None:
    """Return what a worker needs to find the same modules; `None` outside of a command."""
    finder = users_finder()
    return None if finder is None else (finder.folder, sorted(finder.named))


def leave_path() -> None:
    """Take the folder where a command runs off the import path, here and in its processes.

    `python -m kbatch` puts it there, before all libraries. What PYTHONPATH names stays.
    """
    if sys.path and sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    # also for the processes that loky starts by `python -m`
    os.environ["PYTHONSAFEPATH"] = "1"


def _importing_file() -> str:
    """The file of the code that imports, behind the import system."""
    frame = inspect.currentframe()
    while frame is not None:
        file = str(frame.f_code.co_filename)
        if (
            file != __file__
            and not file.startswith("<frozen importlib")
            and not _is_importlib(file)
        ):
            return file
        frame = frame.f_back
    return ""


def _is_importlib(file: str) -> bool:
    return os.path.dirname(file) == os.path.dirname(os.__file__) + f"{os.sep}importlib"


PASSED = ("kbatch", "keras_tuner", "contextlib")  # packages through which a call comes


def warn(words: str) -> None:
    """Warn at the line outside of kbatch and KerasTuner that made the call."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _package(frame) in PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(words, stacklevel=level)


def users_frame() -> FrameType | None:
    """Return the innermost frame of code that belongs to no library; `None` if there is none."""
    frame = inspect.currentframe()
    while frame is not None and _is_of_library(frame):
        frame = frame.f_back
    return frame


def _is_of_library(frame: FrameType) -> bool:
    package, file = _package(frame), frame.f_code.co_filename
    known = package in LIBRARIES or package in sys.stdlib_module_names
    return known or any(each in file for each in INSTALLED)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@dataclass(frozen=True)
class Imported:
    """A function in a module that is not imported here."""

    module: str  # name of the module
    name: str  # name of the function in it

    def __call__(self, hp: Any = None) -> Any:
        """What the function returns; a worker calls the function itself (see `load`)."""
        return self.load()(hp)

    def load(self) -> Callable[..., Any]:
        """The function."""
        found = getattr(importlib.import_module(self.module), self.name, None)
        if not callable(found) or hasattr(found, "train_step"):
            received = "nothing" if found is None else type(found).__name__
            raise ModelError(
                f"`{self.name}` in {self.module} must be a function that returns a model",
                received,
                "Name a function",
            )
        return found  # type: ignore[no-any-return]


def imported(text: str) -> Imported:
    """The function that `"module:build"` names."""
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ModelError(
            "A build function must be named as module:function",
            text,
            "Write mymodel:build for the function `build` in mymodel.py",
        )
    module_name = module.removesuffix(".py") if module.endswith(".py") else module
    name_module(module_name)
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        raise ModelError(
            "The module must be importable from here",
            module,
            "Run the command in the module's folder, or set PYTHONPATH",
        )
    return Imported(spec.name, name)
