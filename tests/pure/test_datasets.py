"""The thin TFDS builders over kbatch's own data."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SIDE = 32
tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [name for name in sys.modules if name.split(".")[0] == "datasets"]:
        del sys.modules[name]


def prepared(builder, **arguments):
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**arguments))
    return {
        name: builder.as_dataset(split=name, shuffle_files=False)
        for name in ("train", "validation", "test")
    }


def test_drawn_pets_are_600_200_200_of_each_class(tmp_path):
    from datasets.drawn_pets.drawn_pets_dataset_builder import Builder

    parts = {
        name: list(part.as_numpy_iterator())
        for name, part in prepared(Builder(data_dir=tmp_path)).items()
    }
    assert {
        name: np.bincount([int(e["label"]) for e in part]).tolist() for name, part in parts.items()
    } == {
        "train": [600, 600],
        "validation": [200, 200],
        "test": [200, 200],
    }
    assert parts["train"][0]["image"].shape == (64, 64, 3)


def test_the_photographs_are_read_from_the_manual_folder(photographs, tmp_path, monkeypatch):
    from datasets.cats_vs_dogs_2000 import cats_vs_dogs_2000_dataset_builder as module

    assert module.IMAGE_SIZE == 200
    monkeypatch.setattr(module, "IMAGE_SIZE", SIDE)  # 2,000 larger ones take half a minute to write
    parts = prepared(module.Builder(data_dir=tmp_path), manual_dir=photographs.parent)
    # counted without decoding 2,000 pictures again
    assert [int(part.cardinality()) for part in parts.values()] == [1200, 400, 400]
    first = next(parts["test"].as_numpy_iterator())
    assert first["image"].shape == (SIDE, SIDE, 3)
