"""Places: what the code of a recipe takes from elsewhere, such as the model and the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbatch.code.definitions import Definition

BUILD = '''\
def build_model():
    """Return a new model."""
    # TODO: build your model here.
    raise NotImplementedError("build_model() must return a keras.Model")'''
DATA = '''\
def load_data():
    """Return the arrays to train on and those to validate on, each as (x, y)."""
    # TODO: load your data here.
    raise NotImplementedError("load_data() must return (x, y), (x_val, y_val)")'''


@dataclass(frozen=True)
class Places:
    """What the code of a recipe takes from elsewhere. The defaults are marked with TODO.

    Attributes:
        title: String, the first line of the code, without a full stop.
        notes: Sentences below it.
        build: Code that defines the function `build_model()`.
        data: Code that defines the function `load_data()`.
        definitions: The definitions that both use.
        compiled: Loss and metrics of a model that is not compiled, as expressions by name.
        arguments: Other arguments of `train`, as text.
        todo: Sentences on what is to be done before it trains.
        stop: Statements that stop the script where something cannot be written.
        epochs: The passes over the data, as an expression.
        seed: Integer, the seed of weights, order and dropout.
    """

    title: str = "Train a model by a recipe"
    notes: tuple[str, ...] = ()
    build: str = BUILD
    data: str = DATA
    definitions: tuple[Definition, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    todo: tuple[str, ...] = (
        "TODO: pass the epochs; and loss= and metrics= if build_model() compiles no model.",
    )
    stop: tuple[str, ...] = ()
    epochs: str = "10"
    seed: int = 0
