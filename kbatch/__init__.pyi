"""Public names of kbatch, each once: lazy_loader and type checkers read them here."""

from . import callbacks, errors, memory, recompute, results, testing
from .data.augmentation import CutMix, MixUp, register_augmentation
from .hypermodel import HyperModel, objective
from .memory._estimate import throughput
from .memory._find import find_max_batch
from .memory._table import max_batches
from .model_spec import ModelSpec
from .outcome import Outcome, score
from .recipe import Recipe
from .results._advice_evidence import Advice
from .results.advice import advise, starting_recipe
from .results.ranking import best_recipe
from .results.report import report
from .space import Space
from .standin.notebook import load_ipython_extension, unload_ipython_extension
from .standin.tuned import Tuned, tune
from .training.confirmation import confirm
from .training.noise import noise_scale
from .training.one_recipe import retrain, train
from .training.workers import LocalExecutor, RayExecutor
from .tuner import Tuner

__version__: str

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
    "Tuned",
    "Tuner",
    "advise",
    "best_recipe",
    "callbacks",
    "confirm",
    "errors",
    "find_max_batch",
    "load_ipython_extension",
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
    "tune",
    "unload_ipython_extension",
]
