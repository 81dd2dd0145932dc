"""kbatch: a search for the way of training with the most validation accuracy per second.

The rooms, from the ground up. Imports go strictly to a lower floor; `tests/test_floors.py` compares
this list:

   -3  errors
   -2  json_form · number_text · recompute_strategy
   -1  option · recipe
    0  axis · notebook · outcome · problems · runtime · scoring · text_table
    1  axes · command_option · device · goal · model_spec · records · rules · tracing
    2  callbacks · data · recompute · space
    3  building · combination · results
    4  memory · tuner · tuner_border
    5  training
    6  hypermodel
    7  case_study · testing
    8  gpu_checks
    9  cli

Public names are loaded on first use: `import kbatch` imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kbatch import callbacks, errors, memory, recompute, results, testing
    from kbatch.data.augmentation import register_augmentation
    from kbatch.hypermodel import HyperModel, objective
    from kbatch.memory._find_max_batch import find_max_batch
    from kbatch.memory._max_batches import max_batches
    from kbatch.memory._throughput import throughput
    from kbatch.model_spec import ModelSpec
    from kbatch.outcome import Outcome
    from kbatch.recipe import Recipe
    from kbatch.results.best import best_recipe
    from kbatch.results.report import report
    from kbatch.scoring import score
    from kbatch.space import Space
    from kbatch.training.confirmation import confirm
    from kbatch.training.one_recipe import train

_HOME = {
    "HyperModel": "kbatch.hypermodel",
    "ModelSpec": "kbatch.model_spec",
    "Outcome": "kbatch.outcome",
    "Recipe": "kbatch.recipe",
    "Space": "kbatch.space",
    "best_recipe": "kbatch.results.best",
    "callbacks": "",
    "confirm": "kbatch.training.confirmation",
    "errors": "",
    "find_max_batch": "kbatch.memory._find_max_batch",
    "max_batches": "kbatch.memory._max_batches",
    "memory": "",
    "objective": "kbatch.hypermodel",
    "recompute": "",
    "register_augmentation": "kbatch.data.augmentation",
    "report": "kbatch.results.report",
    "results": "",
    "score": "kbatch.scoring",
    "testing": "",
    "throughput": "kbatch.memory._throughput",
    "train": "kbatch.training.one_recipe",
}

__all__ = [
    "HyperModel",
    "ModelSpec",
    "Outcome",
    "Recipe",
    "Space",
    "best_recipe",
    "callbacks",
    "confirm",
    "errors",
    "find_max_batch",
    "max_batches",
    "memory",
    "objective",
    "recompute",
    "register_augmentation",
    "report",
    "results",
    "score",
    "testing",
    "throughput",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kbatch' has no attribute {name!r}")
    home = _HOME[name]
    value = (
        getattr(importlib.import_module(home), name)
        if home
        else importlib.import_module(f"kbatch.{name}")
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
