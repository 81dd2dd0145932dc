"""What comes from someone else is data: no program starts, and no file outside is touched."""

import dataclasses
import io
import json
import math
import os
import shutil
import stat
import zipfile

import keras
import keras_tuner
import numpy as np
import pytest
from PIL import Image

import kbatch
from kbatch import Outcome
from kbatch.cli import search_run
from kbatch.data import array_files, sources
from kbatch.data import pictures as data_pictures
from kbatch.data.case_study import read_images
from kbatch.data.examples import Shares
from kbatch.errors import DataError, KbatchError, RecordError
from kbatch.plain_text import Below, fits_json
from kbatch.records import files
from kbatch.records.files import Lock
from kbatch.records.project import Project
from kbatch.script import fit

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """A program `gs` on the path that leaves a trace."""
    trace = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return trace


def folder_of_pictures(folder, content, name="x.jpg"):
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / label / f"{number}.png")
        (folder / label / name).write_bytes(content)
    return folder


def png_of(width, height):
    """A whole PNG of one colour, of few bytes."""
    page = io.BytesIO()
    Image.new("1", (width, height)).save(page, "PNG")
    return page.getvalue()


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.gif"])
def test_a_picture_starts_no_program(name, tmp_path, ghostscript):
    folder = folder_of_pictures(tmp_path / "data", EPS, name)
    images, skipped = read_images(folder, 8, 3)
    assert [len(each) for each in images.values()] == [3, 3]
    assert skipped == (f"cat/{name}", f"dog/{name}")
    assert fit.decoded(folder / "cat" / name, 8) is None
    assert not ghostscript.exists()


def test_formats_are_read_whatever_their_ending(tmp_path):
    for form in data_pictures.FORMATS:
        file = tmp_path / f"{form}.jpg"
        Image.new("RGB", (9, 7), (10, 200, 30)).save(file, form)
        pixels = data_pictures.decode(file.read_bytes(), 8)
        np.testing.assert_array_equal(pixels, fit.decoded(file, 8))
        assert abs(int(pixels[0, 0, 1]) - 200) < 5


def test_the_size_of_a_picture_is_known_before_its_pixels(tmp_path):
    content = png_of(13_000, 8_000)
    with pytest.raises(OSError, match="13000 x 8000 pixels, at most 100,000,000"):
        data_pictures.decode(content, 8)
    folder = folder_of_pictures(tmp_path / "data", content)
    _, skipped = read_images(folder, 8, 3)
    assert skipped[0] == "cat/x.jpg (13000 x 8000 pixels, at most 100,000,000)"
    assert fit.decoded(folder / "cat" / "x.jpg", 8) is None


def build(hp):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
SPACE = kbatch.Space(batch_size=(8, 16), optimizer="sgd", policy="float32")


def tuner_in(folder, kind):
    arguments = {"directory": folder, "project_name": "p"}
    if kind == "stock":
        model = kbatch.HyperModel(build, SPACE, seconds_per_trial=0.1)
        return keras_tuner.RandomSearch(model, kbatch.objective(), 2, **arguments)
    return kbatch.Tuner(build, SPACE, seconds_per_trial=0.1, max_trials=2, **arguments)


def resume(folder, kind="kbatch"):
    tuner_in(folder, kind).search(X, Y, validation_data=(X, Y), verbose=0)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    resume(folder)
    return folder


FILES = (
    "kbatch/lock",
    "kbatch/records.jsonl",
    "kbatch/project.json",
    "oracle.json",
    "tuner0.json",
    "trial_0/trial.json",
    "trial_0/checkpoint.weights.h5",
    "trial_9/build_config.json",
    "kbatch/half.tmp",
)


@pytest.mark.parametrize("kind", ["kbatch", "stock"])
@pytest.mark.parametrize("file", FILES)
def test_nothing_is_written_through_a_link(file, kind, searched, tmp_path):
    folder = shutil.copytree(searched, tmp_path / "runs")
    outside = tmp_path / "mine.txt"
    link = folder / "p" / file
    link.parent.mkdir(exist_ok=True)
    outside.write_bytes(link.read_bytes() if link.exists() else b"mine")
    before = outside.read_bytes()
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    said = "must hold no links" if kind == "kbatch" else ""
    with pytest.raises(Exception, match=said or None):
        resume(folder, kind)
    if kind == "kbatch":  # a stock tuner reads and writes its own files before kbatch is asked
        assert outside.read_bytes() == before
    with pytest.raises(RecordError, match=f"{link} -> {outside}"):
        Project(folder / "p")


def test_overwriting_removes_nothing_behind_a_link(searched, tmp_path):
    folder, mine = shutil.copytree(searched, tmp_path / "runs"), tmp_path / "mine"
    mine.mkdir()
    (mine / "kept.txt").write_text("mine")
    (folder / "p" / "trial_7").symlink_to(mine)
    with pytest.raises(RecordError, match="must hold no links"):
        kbatch.Tuner(
            build, SPACE, seconds_per_trial=1, directory=folder, project_name="p", overwrite=True
        )
    assert (mine / "kept.txt").read_text() == "mine"


def test_a_project_may_stand_behind_a_link_of_its_own(searched, tmp_path):
    shutil.copytree(searched, tmp_path / "there")
    (tmp_path / "runs").symlink_to(tmp_path / "there")
    resume(tmp_path / "runs")


@pytest.mark.parametrize("name", ["search", "report.md"])
def test_a_command_begins_on_no_link(name, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    target = tmp_path / ("elsewhere" if name == "search" else "mine.txt")
    (tmp_path / "out" / name).symlink_to(target)
    with pytest.raises(RecordError, match="must hold no links"):
        search_run.ready(str(tmp_path / "out"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_lock_is_no_link(tmp_path):
    (tmp_path / "kbatch").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "kbatch" / "lock").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(RecordError):
        Lock(tmp_path / "kbatch")
    assert (tmp_path / "mine.txt").read_text() == "mine"


OUTSIDE = [
    "a\n/../../x",
    "a\tb",
    "../x\n",
    "../x",
    "a/../../x",
    "/etc/passwd",
    "..",
    "C:\\x",
    "a\\..\\x",
    "\\\\host\\x",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_checkpoint_is_below_its_project(path, searched, tmp_path):
    assert not fits_json(path, Below)
    folder = shutil.copytree(searched, tmp_path / "runs")
    file = folder / "p" / "kbatch" / "records.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line.get("record"):
            line["record"]["checkpoint"] = path
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="must be a record"):
        kbatch.report(folder / "p")


@pytest.mark.parametrize("path", ["", "trial_0/checkpoint.weights.h5", "a..b/c...", "a\\b"])
def test_a_path_below_is_taken(path):
    assert fits_json(path, Below)


def test_a_deep_folder_is_walked(tmp_path):
    deep = tmp_path
    for _ in range(300):
        deep = deep / "a"
    deep.mkdir(parents=True)
    files.check_no_links(tmp_path)


def test_a_folder_of_pictures_alone_is_named(tmp_path):
    folder = tmp_path / "data"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        (folder / label / "x.jpg").write_bytes(EPS)
    with pytest.raises(DataError):
        read_images(folder, 8, 3)


def npz_of(file, header, version=1):
    """Write a file of one array x and one y, of which only the headers are there."""
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, b"\x93NUMPY" + bytes([version, 0]) + size + text)
    return file


def header_of(kind, shape):
    return str({"descr": kind, "fortran_order": False, "shape": shape})


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("-" * 9_000 + "1", "must be a whole NPZ file"),
        (header_of("<U0", (10**12,)), "must fit into memory"),
        (header_of("<f4", (10**12, 0)), "must fit into memory"),
    ],
    ids=["deep header", "letters without any", "axis without any"],
)
def test_headers_of_arrays_are_refused_in_a_sentence(header, says, tmp_path):
    with pytest.raises(DataError, match=says):
        array_files.look_npz(npz_of(tmp_path / "a.npz", header), Shares(60, 20, 20), 0)


@pytest.mark.parametrize("file", ["oracle.json", "trial_0000/trial.json", "kbatch/lock"])
def test_a_project_with_a_pipe_is_refused_and_never_waits(file, searched, tmp_path):
    folder = shutil.copytree(searched, tmp_path / "runs")
    (folder / "p" / file).unlink(missing_ok=True)
    os.mkfifo(folder / "p" / file)
    with pytest.raises(RecordError, match="files and folders only"):
        resume(folder)


@pytest.mark.parametrize(
    "curve", [((1e12, 1e100), (0.0, -1e100)), ((0.1, 0.5),) * 10_001], ids=["back", "long"]
)
def test_a_curve_that_is_no_trainings_is_no_record(curve):
    """Its chart ended `report` in a traceback, or took all memory."""
    whole = Outcome(ended="horizon", curve=((0.1, 0.5), (0.2, 0.6)))
    assert Outcome.from_dict(whole.to_dict()) == whole
    with pytest.raises(RecordError, match="measurements that is no training's"):
        Outcome.from_dict(dataclasses.replace(whole, curve=curve).to_dict())


def test_a_picture_above_pillows_limit_is_named_with_its_size(tmp_path):
    folder = folder_of_pictures(tmp_path / "data", png_of(20_000, 20_000))
    _, skipped = read_images(folder, 8, 3)
    assert "at most 100,000,000 pixels" in skipped[0]
    assert "400000000 pixels" in skipped[0]


def changed(place, value):
    """Return a function that puts a value into a state, at a path of names and numbers."""

    def change(state):
        for name in place[:-1]:
            state = state[name]
        state[place[-1]] = value

    return change


BROKEN = {
    "no oracle": ("oracle.json", lambda state: state.clear()),
    "gains": ("oracle.json", changed(["gained"], 5)),
    "names": ("oracle.json", changed(["hyperparameters", "space", 0, "config", "name"], 5)),
    "a path for a trial": ("oracle.json", changed(["start_order", 0], "x/../../..")),
    "no trial": ("trial_0000/trial.json", lambda state: state.clear()),
    "another trial": ("trial_0000/trial.json", changed(["trial_id"], "x/../../..")),
    "no number for a score": ("trial_0000/trial.json", changed(["score"], math.nan)),
    "a size outside the space": (
        "trial_0000/trial.json",
        changed(["hyperparameters", "values", "batch_size"], 5),
    ),
    "a batch size": (
        "trial_0000/trial.json",
        changed(["hyperparameters", "values", "batch_size"], "text"),
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_state_of_keras_tuner_is_refused_by_name(how, searched, tmp_path):
    file, change = BROKEN[how]
    folder = shutil.copytree(searched, tmp_path / "copy")
    state = json.loads((folder / "p" / file).read_text())
    change(state)
    (folder / "p" / file).write_text(json.dumps(state))
    with pytest.raises(KbatchError) as caught:
        resume(folder)
    assert "\n" not in str(caught.value)
    assert (folder / "p" / file).read_text() == json.dumps(state)


def test_half_a_file_of_keras_tuner_is_refused_and_overwritten(searched, tmp_path):
    folder = shutil.copytree(searched, tmp_path / "copy")
    (folder / "p" / "oracle.json").write_text('{"rungs": [')
    with pytest.raises(RecordError, match=r"oracle\.json, which is not\. Restore it, pass over"):
        resume(folder)
    tuner = kbatch.Tuner(
        build, SPACE, seconds_per_trial=0.1, directory=folder, project_name="p", overwrite=True
    )
    tuner.search(X, Y, validation_data=(X, Y), max_trials=1, verbose=0)
    assert len(kbatch.results.load(folder / "p")) >= 1


def test_names_in_a_zip_are_as_long_as_on_a_disk(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for label in ("cat", "d" * 60_000):
            archive.writestr(f"{label}/1.png", png_of(8, 8))
    with pytest.raises(DataError, match="at most 255 characters, as on a disk. Received: one of 6"):
        sources.look(str(tmp_path / "pets.zip"), 8, Shares(60, 20, 20), 0)
