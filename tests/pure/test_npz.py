import zipfile
from pathlib import Path

import numpy as np
import pytest

from kbatch.data import array_files
from kbatch.data.array_files import examples_of
from kbatch.data.examples import shares_of
from kbatch.errors import DataError

SHARES = shares_of("60,20,20")
rng = np.random.default_rng(0)


def saved(folder, **arrays):
    path = Path(folder) / "data.npz"
    np.savez(path, **arrays)
    return path


def load(path):
    return array_files.look_npz(path, SHARES, 0).load(lambda count: None)


def xy(count=100, kind="float32"):
    return rng.normal(size=(count, 4)).astype(kind), np.arange(count) % 3


def sizes(found):
    return [
        0 if part is None else len(part[1]) for part in (found.train, found.validation, found.test)
    ]


@pytest.mark.parametrize("kind", ["float16", "float64", "uint8", "int64", "bool", "S3", "U5"])
def test_x_and_y_are_split_with_their_rows_together(tmp_path, kind):
    x = np.arange(90).reshape(90, 1).astype(kind) if kind != "bool" else np.ones((90, 1), bool)
    found = load(saved(tmp_path, x=x, y=np.arange(90) % 3))
    assert sizes(found) == [54, 18, 18]
    assert found.train[0].dtype == x.dtype
    if kind in ("int64", "float64"):
        assert (found.train[0][:, 0] % 3 == found.train[1]).all()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("x_train", "y_train", "x_val", "y_val", "x_test", "y_test"), [75, 20, 10]),
        (("train_images", "train_labels", "val_images", "val_labels"), [75, 20, 0]),
        (("X_train", "Y_train", "X_valid", "Y_valid"), [75, 20, 0]),
        (("x_train", "y_train"), [45, 15, 15]),
        (("features", "targets"), [45, 15, 15]),
    ],
)
def test_parts_are_told_by_their_names(tmp_path, names, expected):
    counts = iter((75, 20, 10))
    arrays = {}
    for x, y in zip(names[::2], names[1::2], strict=True):
        arrays[x], arrays[y] = xy(next(counts))
    assert sizes(load(saved(tmp_path, **arrays))) == expected


def test_a_test_set_is_kept_for_the_test(tmp_path):
    (x, y), (x_test, y_test) = xy(100), xy(30)
    found = load(saved(tmp_path, x_train=x, y_train=y, x_test=x_test, y_test=y_test))
    assert sizes(found) == [76, 24, 30]
    assert np.array_equal(found.test[0], x_test)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": [1.0], "b": [2.0]}, "must hold x and y"),
        ({"x": [1.0]}, "y missing"),
        ({"x_val": [1.0], "y_val": [1]}, "must hold x and y"),
        ({"x": [1.0], "y": [1], "weights": [1.0]}, "Received: weights"),
        ({"x": [1.0], "y": [1], "images": [1.0]}, "means the same as x"),
        ({"x": [1.0], "y": [1], "x_train": [1.0], "y_train": [1]}, "must hold x and y"),
        ({"x": [[1.0]] * 3, "y": [1] * 4}, "3 in x, 4 in y"),
        ({"x": 1.0, "y": 1}, "x of shape \\(\\)"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, "x of shape \\(0, 3\\)"),
        ({"x": [[1.0]] * 9, "y": [1j] * 9}, "y of type complex128"),
        ({"x": [[1.0]] * 9, "y": [np.nan] + [1.0] * 8}, "1 that are not"),
        ({"x": [[1.0]] * 9, "y": ["a"] * 9}, "two or more classes"),
        ({"x": [1.0, 2.0], "y": [0, 1]}, "at least 3 examples"),
        (
            {"x_train": [[1.0]], "y_train": [1], "x_val": [[1.0, 2.0]], "y_val": [1]},
            "the same shape",
        ),
        (
            {"x_train": [1, 2], "y_train": ["a", "b"], "x_val": [1], "y_val": ["c"]},
            "Received: c in validation",
        ),
    ],
)
def test_other_arrays_are_refused_by_name(tmp_path, arrays, text):
    path = saved(tmp_path, **{name: np.asarray(array) for name, array in arrays.items()})
    with pytest.raises(DataError, match=text):
        load(path)


class Trap:
    """A pickle that leaves a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_never_read(tmp_path):
    trap = tmp_path / "sprung"
    objects = np.array([Trap(trap), None], dtype=object)
    with pytest.raises(DataError, match="y of type object"):
        load(saved(tmp_path, x=np.zeros((2, 1)), y=objects))
    assert not trap.exists()


@pytest.mark.parametrize("how", ["empty", "text", "cut", "no arrays", "npy", "locked"])
def test_broken_files_are_refused_in_one_sentence(tmp_path, how):
    path = saved(tmp_path, x=xy()[0], y=xy()[1])
    whole = path.read_bytes()
    if how == "npy":
        np.save(tmp_path / "x.npy", xy()[0])
        path.write_bytes((tmp_path / "x.npy").read_bytes())
    elif how == "no arrays":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"nothing")
    else:
        new = {"empty": b"", "text": b"hello", "cut": whole[:-300], "locked": whole}
        path.write_bytes(new[how])
    if how == "locked":
        flagged = bytearray(whole)
        flagged[6] |= 1
        place = whole.rindex(b"PK\x01\x02")
        flagged[place + 8] |= 1
        path.write_bytes(bytes(flagged))
    with pytest.raises(DataError, match="--data must be a whole NPZ file"):
        load(path)


def test_a_changed_byte_is_found(tmp_path):
    path = saved(tmp_path, x=xy(5000)[0], y=xy(5000)[1])
    content = bytearray(path.read_bytes())
    content[20_000] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="CRC"):
        load(path)


def test_arrays_that_do_not_fit_are_refused_by_their_bytes(tmp_path, monkeypatch):
    path = saved(tmp_path, x=np.zeros((1000, 100)), y=np.zeros(1000))
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Free", (), {"available": 1000}))
    with pytest.raises(DataError, match="808,000 bytes each time. Received: 1,000 bytes"):
        array_files.look_npz(path, SHARES, 0)


@pytest.mark.parametrize("kind", [str, bytes])
def test_text_labels_are_numbered_by_their_names(kind):
    names = ["dog", "cat", "dog", "ant"] * 6
    labels = np.array([name if kind is str else name.encode() for name in names])
    found = examples_of({"x": np.arange(24), "y": labels}, "data", SHARES, 0)
    assert found.classes == ("ant", "cat", "dog")
    assert [found.classes[y] for y in found.train[1]] == [names[x] for x in found.train[0]]


def test_labels_of_one_column_are_plain():
    x, y = xy(30)
    plain = examples_of({"x": x, "y": y}, "data", SHARES, 0)
    column = examples_of({"x": x, "y": y[:, None]}, "data", SHARES, 0)
    assert np.array_equal(plain.train[1], column.train[1])
    assert examples_of({"x": x, "y": y > 0}, "d", SHARES, 0).train[1].dtype == "int32"


def test_one_hot_labels_are_split_by_class():
    labels = np.eye(2)[[0] * 50 + [1] * 50]
    found = examples_of({"x": np.arange(100), "y": labels}, "data", SHARES, 0)
    assert found.validation[1].sum(axis=0).tolist() == [10, 10]


def test_rare_labels_and_odd_values_are_told():
    found = examples_of(
        {"x": np.array([[np.inf]] * 40), "y": np.array([0] * 20 + [1] * 19 + [2])}, "d", SHARES, 0
    )
    assert found.notes == (
        "Some labels have fewer than 3 examples: the split is not by class.",
        "Only 8 examples to validate on.",
        "40 values of the examples are not finite.",
    )
