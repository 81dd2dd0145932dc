import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from kbatch.data.case_study import pictures, read_images, split
from kbatch.data.pictures import decode
from kbatch.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for label, shade in (("Cat", 40), ("Dog", 200)):
        (tmp_path / label).mkdir()
        for number in range(12):
            Image.new("RGB", (30 + number, 20), (shade, number, 0)).save(
                tmp_path / label / f"{number}.jpg"
            )
    (tmp_path / "Cat" / "2.jpg").write_bytes(b"")
    (tmp_path / "Cat" / "Thumbs.db").write_bytes(b"not an image")
    (tmp_path / "Dog" / "3.jpg").write_text("<html>404</html>")
    whole = (tmp_path / "Dog" / "5.jpg").read_bytes()
    (tmp_path / "Dog" / "5.jpg").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def test_unreadable_files_are_named_and_skipped(folder):
    images, skipped = read_images(folder, 16, per_class=8)
    assert skipped == ("Cat/2.jpg", "Dog/3.jpg", "Dog/5.jpg")
    assert images["Cat"].shape == images["Dog"].shape == (8, 16, 16, 3)


def test_files_are_taken_by_number_not_by_text(folder):
    images, _ = read_images(folder, 16, per_class=9)
    greens = [int(image[..., 1].mean().round()) for image in images["Cat"]]
    assert greens == pytest.approx([0, 1, 3, 4, 5, 6, 7, 8, 9], abs=2)


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA"])
def test_every_colour_mode_is_read_as_rgb(mode, tmp_path):
    kind = {"L": "JPEG", "CMYK": "JPEG", "P": "PNG", "RGBA": "PNG"}[mode]
    Image.new("RGB", (20, 20), (250, 250, 250)).convert(mode).save(tmp_path / "a.jpg", format=kind)
    pixels = decode((tmp_path / "a.jpg").read_bytes(), 8)
    assert pixels.shape == (8, 8, 3)
    assert pixels.mean() > 230


def test_a_zip_is_read_like_its_folder(folder):
    archive = folder / "pets.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.glob("*/*"):
            file.write(path, f"PetImages/{path.parent.name}/{path.name}")
    from_folder, from_zip = read_images(folder, 16, 8), read_images(archive, 16, 8)
    assert from_folder[1] == from_zip[1]
    assert all(
        np.array_equal(from_folder[0][label], from_zip[0][label]) for label in ("Cat", "Dog")
    )


def test_too_few_readable_images_say_how_many_there_are(folder):
    with pytest.raises(DataError, match="11 of Cat, 10 of Dog; 3 files"):
        read_images(folder, 16, per_class=100)


def test_what_is_no_regular_file_is_named_and_not_opened(folder):
    os.mkfifo(folder / "Cat" / "20.jpg")
    (folder / "Cat" / "21.jpg").symlink_to("/dev/zero")
    (folder / "Dog" / "22.jpg").symlink_to("22.jpg")
    (folder / "Dog" / "23.jpg").mkdir()
    with open(folder / "Dog" / "24.jpg", "wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    _, skipped = read_images(folder, 16, per_class=9)
    assert set(skipped) >= {"Cat/20.jpg", "Cat/21.jpg", "Dog/22.jpg", "Dog/23.jpg", "Dog/24.jpg"}


def test_names_that_no_terminal_can_show_are_escaped(folder):
    (folder / "Cat" / os.fsdecode(b"\xff\x1b[2J.jpg")).write_bytes(b"")
    _, skipped = read_images(folder, 16, per_class=9)
    assert all(name.isprintable() and name.encode("utf-8") for name in skipped)


def test_fewer_images_are_taken_if_they_are_enough(folder):
    images, _ = read_images(folder, 16, per_class=100, least=10)
    assert {label: len(pixels) for label, pixels in images.items()} == {"Cat": 10, "Dog": 10}


def test_the_shares_of_a_split_hold_for_any_number():
    found = split(
        "fruit",
        {"apple": np.zeros((107, 8, 8, 3), "uint8"), "banana": np.zeros((150, 8, 8, 3), "uint8")},
    )
    assert [list(np.bincount(part[1])) for part in (found.train, found.validation, found.test)] == [
        [63, 63],
        [21, 21],
        [21, 21],
    ]


@pytest.mark.parametrize("odd", ["pipe", "/dev/zero", "x" * 300])
def test_a_source_that_is_no_folder_or_file_is_refused_at_once(odd, tmp_path):
    if odd == "pipe":
        os.mkfifo(tmp_path / odd)
    with pytest.raises(DataError, match="--data must be"):
        pictures(str(tmp_path / odd), 8)


@pytest.mark.parametrize("make", ["missing", "empty", "one_class"])
def test_a_folder_that_is_none_of_ours_is_refused(make, tmp_path):
    if make == "one_class":
        (tmp_path / "Cat").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "Cat" / "0.jpg")
    with pytest.raises(DataError, match=r"Received"):
        read_images(tmp_path / "nowhere" if make == "missing" else tmp_path, 16, 1)


def test_the_real_photographs_with_all_their_traps(photographs):
    images, skipped = read_images(photographs, 8, per_class=1001)
    assert skipped == ("Cat/666.jpg", "Dog/1002.jpg", "Dog/1003.jpg", "Dog/11702.jpg")
    assert len(images["Cat"]) == len(images["Dog"]) == 1001
    with pytest.raises(DataError, match="1002 of Cat, 1001 of Dog"):
        read_images(photographs, 8, per_class=1003)


def test_the_case_study_is_600_200_200_of_each_class(photographs):
    found = pictures(str(photographs), 8)
    assert [part[0].shape for part in (found.train, found.validation, found.test)] == [
        (1200, 8, 8, 3),
        (400, 8, 8, 3),
        (400, 8, 8, 3),
    ]
    assert [list(np.bincount(part[1])) for part in (found.train, found.validation, found.test)] == [
        [600, 600],
        [200, 200],
        [200, 200],
    ]
