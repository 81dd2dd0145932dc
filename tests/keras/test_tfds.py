"""TFDS as the user has it, with tiny data sets that are made here: there is no network."""

import numpy as np
import pytest

from kbatch.data import tfds as data_tfds
from kbatch.data.examples import Form, shares_of
from kbatch.errors import DataError

tfds = pytest.importorskip("tensorflow_datasets")
SHARES = shares_of("60,20,20")


class TinySet(tfds.core.GeneratorBasedBuilder):
    """What the data sets of these tests share."""

    VERSION = tfds.core.Version("1.0.0")
    FEATURES = {}
    SPLITS = {"train": 60}

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        keys = ("x", "y") if "y" in self.FEATURES else None
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples(count) for name, count in self.SPLITS.items()}

    def _generate_examples(self, count):
        for number in range(count):
            yield number, {"x": self.example(number), "y": self.label(number)}


class TinyPictures(TinySet):
    FEATURES = {
        "x": tfds.features.Image(shape=(None, None, 1)),
        "y": tfds.features.ClassLabel(names=["ant", "bee", "cow"]),
    }

    def example(self, number):
        return np.full((8 + number % 3, 9, 1), number, "uint8")

    def label(self, number):
        return number % 3


class TinyParts(TinyPictures):
    SPLITS = {"train": 30, "validation": 9, "test": 6, "unlabelled": 4}


class TinyNumbers(TinySet):
    FEATURES = {
        "x": tfds.features.Tensor(shape=(4,), dtype=np.float32),
        "y": tfds.features.Scalar(np.float32),
    }

    def example(self, number):
        return np.full(4, number, "float32")

    def label(self, number):
        return number / 2


class TinyAlone(TinySet):
    FEATURES = {"x": tfds.features.Scalar(np.float32)}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for kind in (TinyPictures, TinyParts, TinyNumbers):
        kind(data_dir=folder).download_and_prepare()
    tfds.core.add_data_dir(folder)
    return folder


def look(name, image_size=8):
    return data_tfds.look(name, image_size, SHARES, 0)


def load(name):
    return look(name).load(lambda count: None)


def test_pictures_are_resized_and_split_by_class():
    found = load("tiny_pictures")
    assert found.classes == ("ant", "bee", "cow")
    assert found.train[0].shape == (36, 8, 8, 3)
    for x, y in (found.train, found.validation, found.test):
        assert np.array_equal(x[:, 0, 0, 0] % 3, y)
    assert np.bincount(found.validation[1]).tolist() == [4, 4, 4]


def test_splits_of_tfds_are_used_as_they_are():
    found = load("tiny_parts")
    assert found.sizes == "30 to train, 9 to validate, 6 to test"
    assert found.notes == ("Splits that are left out: unlabelled.",)


def test_numbers_are_taken_as_they_are():
    found, source = load("tiny_numbers"), look("tiny_numbers")
    assert (source.images, source.form, source.classes) == (False, Form((4,), "float32"), ())
    assert np.array_equal(found.train[0][:, 0] / 2, found.train[1])


def test_the_first_pictures_of_each_class_are_taken_in_order():
    found = look("tiny_pictures").first(5, lambda count: None)
    assert list(found) == ["ant", "bee", "cow"]
    assert found["bee"].shape == (5, 8, 8, 3)
    stored = tfds.as_numpy(tfds.load("tiny_pictures", split="train"))
    bees = [int(example["x"].max()) for example in stored if example["y"] == 1]
    assert found["bee"][:, 0, 0, 0].tolist() == bees[:5]
    with pytest.raises(DataError, match="20 of ant, 20 of bee, 20 of cow"):
        look("tiny_pictures").first(21, lambda count: None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tiny_picture", "Did you mean tiny_pictures"),
        ("no such/name: at all", "TFDS must"),
        ("", "TFDS must"),
        ("tiny_alone", "supervised_keys"),
        ("../..", "TFDS must"),
    ],
)
def test_other_names_are_refused(name, text):
    with pytest.raises(DataError, match=text):
        look(name)


def test_pictures_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Free", (), {"available": 9}))
    with pytest.raises(DataError, match=r"60 examples of shape \(8, 8, 3\) take 11,520 bytes"):
        load("tiny_pictures")
