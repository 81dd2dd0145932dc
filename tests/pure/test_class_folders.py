import pytest

from kbatch.data.pictures import Entry, class_folders
from kbatch.errors import DataError


def of(*names):
    entries = [Entry(tuple(name.split("/")), bytes) for name in names]
    folders = class_folders(entries, "pics")
    found = {
        part: {label: len(found) for label, found in by_class.items()}
        for part, by_class in folders.parts.items()
    }
    return found, folders


def test_each_folder_is_a_class():
    found, folders = of("cat/1.jpg", "dog/1.jpg", "dog/2.jpg", "ant/1.jpg")
    assert found == {"": {"cat": 1, "dog": 2, "ant": 1}}
    assert folders.classes == ("ant", "cat", "dog")


def test_folders_inside_of_a_class_belong_to_it():
    assert of("cat/a/1.jpg", "cat/2.jpg", "dog/b/c/1.jpg")[0] == {"": {"cat": 2, "dog": 1}}


@pytest.mark.parametrize("validation", ["val", "valid", "Validation", "validation_set"])
def test_parts_are_used_as_they_are(validation):
    names = [f"{part}/{label}/1.png" for part in ("train", validation, "test") for label in "ab"]
    one_each = {"a": 1, "b": 1}
    assert of(*names)[0] == {"train": one_each, "validation": one_each, "test": one_each}


def test_folders_around_the_classes_are_passed_through():
    assert of("set/PetImages/cat/1.jpg", "set/PetImages/dog/1.jpg")[1].above == ("set", "PetImages")
    assert of("set/train/cat/1.jpg", "set/train/dog/1.jpg")[0] == {"train": {"cat": 1, "dog": 1}}


def test_classes_may_be_called_as_parts_are():
    assert of("train/1.jpg", "bus/1.jpg")[0] == {"": {"train": 1, "bus": 1}}
    assert of("test/1.jpg", "bus/1.jpg")[0] == {"": {"test": 1, "bus": 1}}


def test_sets_are_parts_too():
    names = [f"{part}/{label}/1.jpg" for part in ("training_set", "test_set") for label in "ab"]
    assert of(*names)[0] == {"train": {"a": 1, "b": 1}, "test": {"a": 1, "b": 1}}


@pytest.mark.parametrize(
    ("tops", "named"),
    [
        (("train", "val", "single"), "train, val hold folders"),
        (("learn", "check"), "check, learn hold folders"),
        (("2023", "2024", "2025"), "2023, 2024, 2025 hold folders"),
    ],
)
def test_parts_are_not_trained_on_as_classes(tops, named):
    inner = {"single": ("1.jpg",)}
    names = [f"{top}/{name}" for top in tops for name in inner.get(top, ("cat/1.jpg", "dog/1.jpg"))]
    with pytest.raises(DataError, match=named):
        of(*names)


def test_classes_may_hold_folders_of_their_own():
    names = ("cat/black/1.jpg", "cat/white/1.jpg", "dog/black/1.jpg", "dog/brown/1.jpg")
    assert of(*names)[0] == {"": {"cat": 2, "dog": 2}}


def test_hidden_files_and_those_in_no_class_are_left_out():
    found, folders = of(
        "cat/1.jpg", "dog/1.jpg", "cat/._1.jpg", ".git/1.jpg", "__MACOSX/cat/1.jpg", "logo.png"
    )
    assert found == {"": {"cat": 1, "dog": 1}}
    assert folders.outside == 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "no folder of pictures"),
        (["1.jpg", "2.jpg"], "no folder of pictures"),
        (["cat/1.jpg", "cat/2.jpg"], "one folder of pictures, cat"),
        (["train/1.jpg", "test/1.jpg"], "in its folder train"),
        (["train/a/1.jpg", "train/b/1.jpg", "test/1.jpg"], "The part test"),
        (["train/a/1.jpg", "train/b/1.jpg", "val/c/1.jpg"], "Received: c"),
        ([f"{part}/{label}/1.jpg" for part in ("train", "val", "valid") for label in "ab"], "one"),
    ],
)
def test_other_folders_are_refused(names, text):
    with pytest.raises(DataError, match=text):
        of(*names)
