"""Build function: named as `module:function`, and imported in the worker only."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbatch.errors import ModelError
from kbatch.runtime import users_code


@dataclass(frozen=True)
class Imported:
    """A function in a module that is not imported here.

    Attributes:
        module: Name of the module.
        name: Name of the function in it.
    """

    module: str
    name: str

    def __call__(self, hp: Any = None) -> Any:
        """What the function returns; a worker calls the function itself (see `load`)."""
        return self.load()(hp)

    def load(self) -> Callable[..., Any]:
        """The function.

        Raises:
            ModelError: If the module has none of that name.
        """
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
    """The function that `"module:build"` names.

    Raises:
        ModelError: If it is not of that form or there is no such module.
    """
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ModelError(
            "A build function must be named as module:function",
            text,
            "Write mymodel:build for the function `build` in mymodel.py",
        )
    module_name = module.removesuffix(".py") if module.endswith(".py") else module
    users_code.name_module(module_name)
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
