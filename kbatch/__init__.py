"""kbatch: a search for the way of training with the most validation accuracy per second.

Begin at `recipe` (one way to train), `space` (what is searched), `hypermodel` and `tuner` (a
search) and `outcome` (what a training measured). Below them are the rooms: `rules` scale a recipe
to its batch, `models` make and compile it, `data` streams examples, `checks` measure what is
assumed, `callbacks` keep the clock, `training` trains and records it in `records`. `memory` finds
the largest batch, `recompute` saves memory, `search` proposes trials. `results`, `advice` and
`page` tell what came of them, `script` writes them as plain Keras, `cli` and `driver` are the
command line.
`docs/design.md` has all of them; `lint-imports` holds their floors, which `pyproject.toml` lists.

Public names are loaded on first use: `import kbatch` imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kbatch.distribution import warn_of_other

__version__ = "0.1.0"

warn_of_other()

if TYPE_CHECKING:
    from kbatch import callbacks, errors, memory, recompute, results, testing
    from kbatch.advice.evidence import Advice
    from kbatch.advice.inquiry import advise, starting_recipe
    from kbatch.data.augmentation import CutMix, MixUp, register_augmentation
    from kbatch.hypermodel import HyperModel, objective
    from kbatch.memory._estimate import throughput
    from kbatch.memory._find import find_max_batch
    from kbatch.memory._table import max_batches
    from kbatch.model_spec import ModelSpec
    from kbatch.outcome import Outcome, score
    from kbatch.recipe import Recipe
    from kbatch.results.ranking import best_recipe
    from kbatch.results.report import report
    from kbatch.space import Space
    from kbatch.training.confirmation import confirm
    from kbatch.training.noise import noise_scale
    from kbatch.training.one_recipe import retrain, train
    from kbatch.training.workers import LocalExecutor, RayExecutor
    from kbatch.tuner import Tuner

_HOME = {
    "Advice": "kbatch.advice.evidence",
    "CutMix": "kbatch.data.augmentation",
    "HyperModel": "kbatch.hypermodel",
    "LocalExecutor": "kbatch.training.workers",
    "MixUp": "kbatch.data.augmentation",
    "ModelSpec": "kbatch.model_spec",
    "Outcome": "kbatch.outcome",
    "RayExecutor": "kbatch.training.workers",
    "Recipe": "kbatch.recipe",
    "Space": "kbatch.space",
    "Tuner": "kbatch.tuner",
    "advise": "kbatch.advice.inquiry",
    "best_recipe": "kbatch.results.ranking",
    "callbacks": "",
    "confirm": "kbatch.training.confirmation",
    "errors": "",
    "find_max_batch": "kbatch.memory._find",
    "max_batches": "kbatch.memory._table",
    "memory": "",
    "noise_scale": "kbatch.training.noise",
    "objective": "kbatch.hypermodel",
    "recompute": "",
    "register_augmentation": "kbatch.data.augmentation",
    "report": "kbatch.results.report",
    "results": "",
    "retrain": "kbatch.training.one_recipe",
    "score": "kbatch.outcome",
    "starting_recipe": "kbatch.advice.inquiry",
    "testing": "",
    "throughput": "kbatch.memory._estimate",
    "train": "kbatch.training.one_recipe",
}

__all__ = [
    "Advice",
    "CutMix",
    "HyperModel",
    "LocalExecutor",
    "MixUp",
    "ModelSpec",
    "Outcome",
    "RayExecutor",
    "Recipe",
    "Space",
    "Tuner",
    "advise",
    "best_recipe",
    "callbacks",
    "confirm",
    "errors",
    "find_max_batch",
    "max_batches",
    "memory",
    "noise_scale",
    "objective",
    "recompute",
    "register_augmentation",
    "report",
    "results",
    "retrain",
    "score",
    "starting_recipe",
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
