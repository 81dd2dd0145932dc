"""User's script: a script or a module, run as Python runs it."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kbatch.errors import SearchError


@dataclass(frozen=True)
class UsersScript:
    """A script or a module, and what it is given.

    Attributes:
        name: String, the path of a script, or the dotted name of a module.
        is_module: Boolean, whether it is run as by `python -m`.
        arguments: Tuple of strings, its arguments.
    """

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Path of the script's file.

        Raises:
            SearchError: If there is none.
        """
        if not self.is_module:
            found = Path(self.name)
            if found.is_file():
                return found
            raise SearchError(
                "A script must be a Python file", f"no file {self.name}", "Pass its path, train.py"
            )
        with _first_on_path(str(Path.cwd())):
            try:
                spec = importlib.util.find_spec(self.name)
            except (ImportError, ValueError):
                spec = None
        if spec is None or not spec.origin:
            raise SearchError(
                "--module must name a module that can be imported from here",
                self.name,
                "Pass package.module",
            )
        return Path(spec.origin)

    def run(self) -> None:
        """Run it as `__main__`, with its arguments, in this process."""
        file = self.file
        before = sys.argv
        sys.argv = [str(file) if self.is_module else self.name, *self.arguments]
        folder = str(Path.cwd()) if self.is_module else str(file.resolve().parent)
        try:
            with _first_on_path(folder):
                if self.is_module:
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(str(file.resolve()), run_name="__main__")
        finally:
            sys.argv = before


@contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before
