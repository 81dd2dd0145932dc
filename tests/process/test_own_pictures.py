"""Folders and zips of pictures as people have them."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kbatch.data import examples, pictures
from kbatch.data.examples import shares_of
from kbatch.errors import DataError

SHARES = shares_of("60,20,20")


def look(path, image_size=8, shares=SHARES, seed=0):
    return pictures.look(Path(path), image_size, shares, seed)


def load(path, **changes):
    return look(path, **changes).load(lambda count: None)


def save(folder, shade, numbers):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.new("RGB", (9, 7), (shade, number, 0)).save(folder / f"{number}.png")


@pytest.fixture
def folder(tmp_path):
    for label, shade in (("ant", 10), ("bee [red]", 100), ("größe", 200)):
        save(tmp_path / "pics" / label, shade, range(20))
    return tmp_path / "pics"


def test_labels_belong_to_their_pictures_in_every_part(folder):
    found = load(folder)
    shades = {0: 10, 1: 100, 2: 200}
    for x, y in (found.train, found.validation, found.test):
        assert [shades[label] for label in y.tolist()] == x[:, 0, 0, 0].tolist()
    assert [
        np.bincount(part[1]).tolist() for part in (found.train, found.validation, found.test)
    ] == [[12] * 3, [4] * 3, [4] * 3]
    assert found.classes == ("ant", "bee [red]", "größe")
    assert found.name == "60 pictures of 3 classes (ant, bee [red], größe) in pics"


def test_a_picture_is_in_one_part_only(folder):
    found = load(folder)
    kept = [
        (int(label), int(x[0, 0, 1]))
        for part in (found.train, found.validation, found.test)
        for x, label in zip(*part, strict=True)
    ]
    assert sorted(kept) == [(label, number) for label in range(3) for number in range(20)]


def test_what_cannot_be_read_is_named_and_what_is_odd_is_read(folder):
    ant = folder / "ant"
    (ant / "empty.jpg").write_bytes(b"")
    (ant / "page.jpg").write_text("<html>")
    (ant / "loop.png").symlink_to("loop.png")
    (ant / ".hidden.png").write_bytes(b"")
    (folder / ".cache").mkdir()
    (ant / "notes.txt").write_text("no picture")
    for number, mode in enumerate(("L", "RGBA", "P", "1", "LA", "I;16")):
        Image.new(mode, (5, 5)).save(ant / f"{mode.replace(';', '')} {number}.png")
    Image.new("CMYK", (5, 5)).save(ant / "cmyk.jpg")
    Image.new("L", (5, 5)).save(ant / "grey.BMP")
    Image.new("L", (5, 5)).save(ant / "moving.gif")
    (ant / "linked.png").symlink_to(folder / "größe" / "1.png")
    (folder / "again").symlink_to(folder / "größe")
    found = load(folder)
    assert found.skipped == ("ant/empty.jpg", "ant/loop.png", "ant/page.jpg")
    assert found.classes == ("again", "ant", "bee [red]", "größe")
    counts = sum(np.bincount(part[1]) for part in (found.train, found.validation, found.test))
    assert counts.tolist() == [20, 20 + 10, 20, 20]


def test_a_link_to_a_folder_above_is_not_followed(folder):
    (folder / "ant" / "up").symlink_to(folder)
    assert look(folder).total == 60


def test_the_order_of_the_disk_does_not_decide(folder, monkeypatch):
    first = load(folder)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(real(path), reverse=True))
    again = load(folder)
    assert np.array_equal(first.train[0], again.train[0])


def test_a_zip_is_read_like_its_folder(folder, tmp_path):
    archive = tmp_path / "pics.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.glob("*/*"):
            file.write(path, f"around/{path.parent.name}/{path.name}")
    from_folder, from_zip = load(folder), load(archive)
    assert np.array_equal(from_folder.train[0], from_zip.train[0])
    assert from_folder.classes == from_zip.classes


@pytest.mark.parametrize("others", [("val",), ("test",), ("val", "test")])
def test_folders_of_parts_keep_their_pictures(tmp_path, others):
    parts = {"train": range(12), "val": range(50, 53), "test": range(60, 64)}
    for part in ("train", *others):
        for label in "ab":
            save(tmp_path / part / label, 1, parts[part])
    found = load(tmp_path)

    def numbers(part):
        return set() if part is None else set(part[0][:, 0, 0, 1].tolist())

    if "val" in others:
        assert numbers(found.train) == set(range(12))
        assert numbers(found.validation) == {50, 51, 52}
    else:  # three quarters and one quarter of the folder `train`
        assert numbers(found.train) | numbers(found.validation) == set(range(12))
        assert len(found.validation[1]) == 6
    assert numbers(found.test) == (set(range(60, 64)) if "test" in others else set())


def test_without_a_share_there_is_no_test_set(folder):
    found = load(folder, shares=shares_of("80,20"))
    assert found.test is None
    assert found.sizes == "48 to train, 12 to validate, none to test"


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_with_too_few_pictures_is_refused(folder, count):
    save(folder / "rare", 5, range(count))
    with pytest.raises(DataError, match=f"3 readable pictures of each class. Received: {count} of"):
        look(folder)


def test_a_class_of_unreadable_pictures_is_refused(folder):
    (folder / "bad").mkdir()
    for number in range(5):
        (folder / "bad" / f"{number}.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match="0 of bad; 5 files could not be read"):
        load(folder)


def test_pictures_that_do_not_fit_are_refused_unread(folder, monkeypatch):
    monkeypatch.setattr(pictures, "decode", None)
    with pytest.raises(
        DataError, match=r"60 pictures of 1000000 px take 180,000,000,000,000 bytes"
    ):
        look(folder, image_size=1_000_000)
    needed = 60 * 8 * 8 * 3
    monkeypatch.setattr(
        "psutil.virtual_memory", lambda: type("Free", (), {"available": 2 * needed})
    )
    assert look(folder).total == 60
    with pytest.raises(DataError, match=f"{2 * needed:,} bytes that are free"):
        examples.check_room(needed + 1, "pictures", "Pass less")


def test_notes_say_what_was_left_out(folder):
    (folder / "nothing").mkdir()
    Image.new("RGB", (5, 5)).save(folder / "logo.png")
    assert load(folder).notes == (
        "Pictures that lie in no class folder are left out: 1.",
        "Folders without pictures are no classes: nothing.",
        "Only 12 pictures to validate on: one of them moves an accuracy by 8.3%.",
    )
