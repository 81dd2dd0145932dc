"""What `--data` may name."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kbatch.data import sources
from kbatch.data.array_files import FunctionSource, NpzSource
from kbatch.data.examples import Form, shares_of
from kbatch.data.pictures import PictureSource
from kbatch.errors import DataError

MODULE = """
import numpy as np

x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2


def pair():
    return x, y


def lists():
    return x.tolist(), y.tolist()


def train_and_test():
    return (x, y), (x[:5], y[:5])


def three():
    return (x, y), (x[:5], y[:5]), (x[:4], y[:4])


def named():
    return {"x_train": x, "y_train": y, "x_val": x[:6], "y_val": y[:6]}


def generator():
    yield x, y


def dataset():
    return object(), y


def nothing():
    pass


def ragged():
    return [[1], [1, 2]], [0, 1]


def failing():
    raise KeyError("no such column")


def leaving():
    raise SystemExit(0)


def objects():
    return np.array([{}, {}]), [0, 1]


table = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "somedata.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("somedata", None)


def look(text, image_size=None):
    return sources.look(str(text), image_size, shares_of("60,20,20"), 0)


def load(name):
    return look(f"somedata:{name}").load(lambda count: None)


def test_the_text_tells_the_kind(here):
    for label in "ab":
        (here / "pics" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4)).save(here / "pics" / label / f"{number}.png")
    np.savez(here / "arrays.npz", x=np.zeros((9, 5, 5, 1)), y=np.arange(9) % 3)
    (here / "arrays.npz").rename(here / "arrays.zip")
    assert isinstance(look("pics"), PictureSource)
    assert look("pics").form == Form((64, 64, 3), "uint8")
    assert look(Path("pics"), 16).form.shape == (16, 16, 3)
    assert isinstance(look("arrays.zip"), NpzSource)
    assert look("arrays.zip").form == Form((5, 5, 1), "float64")
    assert look("arrays.zip").images
    assert isinstance(look("somedata:pair"), FunctionSource)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("pair", "12 to train, 4 to validate, 4 to test"),
        ("lists", "12 to train, 4 to validate, 4 to test"),
        ("train_and_test", "16 to train, 4 to validate, 5 to test"),
        ("three", "20 to train, 5 to validate, 4 to test"),
        ("named", "20 to train, 6 to validate, none to test"),
    ],
)
def test_a_function_may_return_pairs_or_names(name, sizes):
    assert load(name).sizes == sizes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generator", "Received: generator"),
        ("dataset", "Received: object"),
        ("nothing", "Received: NoneType"),
        ("ragged", "must be a function that returns"),
        ("failing", "KeyError: 'no such column'"),
        ("leaving", "SystemExit"),
        ("objects", "x of type object"),
        ("table", "Received: int"),
        ("missing", "Received: nothing"),
    ],
)
def test_a_function_that_returns_no_arrays_is_refused(name, text):
    with pytest.raises(DataError, match=text):
        load(name)


@pytest.mark.parametrize(
    "text", ["", "nowhere", "nomodule:load", "somedata:", ":load", "tfds", "x" * 300, "pipe", "\0"]
)
def test_other_texts_are_refused_at_once(text, here):
    os.mkfifo(here / "pipe")
    with pytest.raises(DataError, match="--data"):
        look(text)


def test_a_size_is_refused_for_what_is_not_resized(here):
    np.savez(here / "arrays.npz", x=np.zeros((9, 5, 5, 1)), y=np.arange(9) % 3)
    for text in ("arrays.npz", "somedata:pair"):
        with pytest.raises(DataError, match="--image-size must come with pictures"):
            look(text, 32)
