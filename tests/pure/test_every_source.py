"""What every source of examples promises: one list of sources, one test for each promise.

A new kind of `--data` is one entry of SOURCES. TFDS has tests of its own, since it imports
TensorFlow.
"""

import zipfile

import numpy as np
import pytest
from PIL import Image

from kbatch.data import case_study, sources
from kbatch.data.examples import shares_of

COUNT, SIDE = 20, 8
MODULE = f"""
import numpy as np


def pair():
    return np.arange({COUNT}.0 * {SIDE}).reshape({COUNT}, {SIDE}), np.arange({COUNT}) % 2
"""


def pictures(folder):
    """A folder of two classes, each picture of another grey."""
    for number in range(COUNT):
        path = folder / ("cat", "dog")[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number * 12,) * 3).save(path)
    return str(folder)


def zipped(folder):
    names = pictures(folder / "pets")
    with zipfile.ZipFile(folder / "pets.zip", "w") as archive:
        for path in sorted((folder / "pets").rglob("*.png")):
            archive.write(path, path.relative_to(names))
    return str(folder / "pets.zip")


def arrays(folder):
    numbers = np.arange(COUNT * SIDE, dtype="float32").reshape(COUNT, SIDE)
    np.savez(folder / "own.npz", x=numbers, y=np.arange(COUNT) % 2)
    return str(folder / "own.npz")


def function(folder):
    (folder / "everysource.py").write_text(MODULE)
    return "everysource:pair"


SOURCES = {"folder": pictures, "zip": zipped, "npz": arrays, "function": function}


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def look(request, tmp_path, monkeypatch):
    """A function of a seed and a split, which looks at the same data each time."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = request.param(tmp_path)
    size = SIDE if request.param in (pictures, zipped) else None
    return lambda seed=0, split="60,20,20": sources.look(text, size, shares_of(split), seed)


def rows(part):
    """The bytes of each example with its label."""
    return [x.tobytes() + y.tobytes() for x, y in zip(*part, strict=True)]


def parts(examples):
    return [part for part in (examples.train, examples.validation, examples.test) if part]


def test_each_example_is_in_one_part(look):
    found = [row for part in parts(look().load(lambda count: None)) for row in rows(part)]
    assert len(found) == len(set(found)) == COUNT


@pytest.mark.parametrize(("split", "sizes"), [("60,20,20", [12, 4, 4]), ("80,20", [16, 4])])
def test_parts_have_their_shares_of_each_class(split, sizes, look):
    made = parts(look(split=split).load(lambda count: None))
    assert [len(labels) for _, labels in made] == sizes
    for _, labels in made:
        assert np.ptp(np.bincount(labels.astype(int).reshape(-1))) <= 0


def test_a_seed_is_a_split(look):
    first, again, other = (look(seed).load(lambda count: None) for seed in (1, 1, 2))
    assert rows(first.train) == rows(again.train)
    assert set(rows(first.train)) != set(rows(other.train))


def test_what_a_first_look_tells_is_so(look):
    source, counted = look(), []
    examples = source.load(counted.append)
    assert source.total in (None, COUNT)
    assert counted == sorted(counted)
    assert not counted or counted[-1] == COUNT == source.total
    assert source.classes in ((), ("cat", "dog"))
    shape = examples.train[0].shape[1:]
    assert source.form is None or tuple(source.form.shape) == shape
    assert source.images == (len(shape) == 3)


def test_drawn_pictures_are_of_each_class_alike():
    first, again = (case_study.pictures("drawn", SIDE, 3) for _ in range(2))
    assert rows(first.validation) == rows(again.validation)
    for _, labels in parts(first):
        assert np.ptp(np.bincount(labels.astype(int).reshape(-1))) == 0
