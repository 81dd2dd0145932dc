"""Checks: what kbatch assumes is measured on the user's own model and data before any training."""

from pathlib import Path

import keras
import numpy as np
import pytest

import kbatch
from kbatch.checks import catalogue
from kbatch.errors import ModelError


def test_every_check_says_what_it_assumes_and_what_follows():
    names = [check.name for check in catalogue.CHECKS]
    assert len(set(names)) == len(names) > 0
    for check in catalogue.CHECKS:
        for sentence in (check.assumes, check.otherwise):
            assert sentence
            assert not sentence.endswith(".")


def stateful(hp=None):
    inputs = keras.Input((4, 1), batch_size=8)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(2, stateful=True)(inputs)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_stateful_layers_are_refused_by_name():
    x, y = np.zeros((16, 4, 1), "float32"), np.zeros((16, 1), "float32")
    with pytest.raises(ModelError, match="lstm.* with stateful=True"):
        kbatch.train(kbatch.Recipe(8), stateful, x, y, (x, y), updates=1, metric="val_mae")


def test_the_page_of_assumptions_lists_every_check():
    page = (Path(__file__).parents[1] / "docs/explanation/assumptions.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed == [
        f"| `{check.name}` | {check.assumes} | {check.otherwise} |" for check in catalogue.CHECKS
    ]
