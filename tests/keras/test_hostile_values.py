"""Values that nobody would write: each is read, shown plainly, or named in one sentence."""

import contextlib
import csv
import io
import json
import math
import re
import shutil

import keras
import numpy as np
import pytest

import kbatch
from kbatch.errors import KbatchError
from kbatch.plain_text import CONTROLS, Name, Number, Seconds, fits_json, parse_json
from kbatch.results.loading import load, load_confirmations
from kbatch.results.report import write

X = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
SPACE = kbatch.Space(batch_size=(8, 16), optimizer="sgd", policy="float32")
FEW = (math.nan, 1e308, "\x1b[2J\x1b]0;title\x07", {})
MORE = [
    *(math.inf, -math.inf, -1e308, 1e101, -1, -0.5, 10**19, True, None),
    *("", "up", "=1+1", "a\n# b | c", "<script>x</script>"),
    *("[a](javascript:b)", "x" * 120_000, [], [[]], {"": None}, [1, [2, [3]]]),
]
HOSTILE = [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]


def build(hp):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def tuner_in(folder):
    arguments = {"seconds_per_trial": 0.1, "max_trials": 2, "project_name": "p"}
    return kbatch.Tuner(build, SPACE, directory=folder, **arguments)


@pytest.fixture(scope="module")
def searched(confirmed):
    """The texts of the files of a search with a confirmation."""
    kept = confirmed / "p" / "kbatch"
    return {name: (kept / name).read_text() for name in ("records.jsonl", "project.json")}


def places(value):
    """Every place in a JSON value: its container, and its name or number there."""
    if isinstance(value, (dict, list)):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def versions_of(texts, name, hostile):
    """Give the texts with one hostile value in each place of one file."""
    row = -1 if name == "records.jsonl" else 0
    rows = texts[name].splitlines() if name == "records.jsonl" else [texts[name]]
    count = sum(1 for _ in places(json.loads(rows[row])))
    for number in range(count):
        value = json.loads(rows[row])
        place, key = list(places(value))[number]
        place[key] = hostile
        yield key, {**texts, name: "\n".join([*rows[:row], json.dumps(value), ""])}


def put(texts, folder):
    (folder / "kbatch").mkdir(parents=True)
    for name, text in texts.items():
        (folder / "kbatch" / name).write_text(text)
    return folder


def shown(folder):
    """All that is shown of a search, as one text; a refusal is shown in one sentence."""
    with contextlib.suppress(KbatchError):
        report = kbatch.report(folder)
        tables = [load(folder).to_csv(), load_confirmations(folder).to_csv()]
        return "\n".join([str(report), report.markdown(), *tables])
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["records.jsonl", "project.json"])
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda each: repr(each)[:20])
def test_a_hostile_value_ends_in_no_traceback(hostile, name, searched, tmp_path):
    for number, (_, texts) in enumerate(versions_of(searched, name, hostile)):
        text = shown(put(texts, tmp_path / f"{number}"))
        assert not CONTROLS.search(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["oracle.json", "tuner0.json", "trial_0000/trial.json"])
@pytest.mark.parametrize(
    "hostile", [5, "x/../..", *FEW, [], None], ids=lambda each: repr(each)[:20]
)
def test_a_hostile_state_of_keras_tuner_ends_in_no_traceback(hostile, name, tmp_path):
    whole = tuner_in(tmp_path / "whole")
    whole.search(X, Y, validation_data=(X, Y), verbose=0)
    text = (tmp_path / "whole" / "p" / name).read_text()
    for number in range(sum(1 for _ in places(json.loads(text)))):
        value = json.loads(text)
        place, key = list(places(value))[number]
        place[key] = hostile
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / "p" / name).write_text(json.dumps(value))
        with contextlib.suppress(KbatchError):
            tuner = tuner_in(folder)
            tuner.search(X, Y, validation_data=(X, Y), verbose=0, max_trials=3)
            tuner.results_summary()


OUT_OF_RANGE = {
    "score": [math.nan, math.inf, 1e308],
    "train_seconds": [-1.0, math.inf, 1e300],
    "purpose": ["x" * 301],
    "value": [1e308],
    "updates": [-1],
}


@pytest.mark.parametrize("field", OUT_OF_RANGE)
def test_numbers_out_of_range_name_the_line(field, searched, tmp_path):
    for number, hostile in enumerate(OUT_OF_RANGE[field]):
        versions = versions_of(searched, "records.jsonl", hostile)
        texts = next(each for key, each in versions if key == field)
        lines = texts["records.jsonl"].rstrip("\n") + "\n"
        with pytest.raises(KbatchError, match=rf"line {len(lines.splitlines())}: "):
            kbatch.report(put({**texts, "records.jsonl": lines + "\n"}, tmp_path / f"{number}"))


def test_texts_of_files_command_nothing(searched, tmp_path):
    hostile = "=cmd()\n# forged | <img src=x> [a](http://b) \x1b[2J\u202e"
    rows = []
    for line in searched["records.jsonl"].splitlines():
        value = json.loads(line)
        if value.get("record"):
            value["record"]["outcome"]["remarks"] = [hostile]
            value["record"]["outcome"]["message"] = hostile
            value["record"]["device"] = hostile
            value["record"]["values"]["own"] = hostile
        rows.append(json.dumps(value))
    texts = {**searched, "records.jsonl": "\n".join([*rows, ""])}
    folder = put(texts, tmp_path / "p")
    write(folder)
    page = (folder / "report.md").read_text()
    assert not CONTROLS.search(page)
    assert "\n# forged" not in page
    assert "<img" not in page
    assert "\\[a](http" in page
    cells = [
        cell
        for name in ("trials.csv", "confirmations.csv")
        for row in csv.reader(io.StringIO((folder / name).read_text()))
        for cell in row
    ]
    assert any(cell.startswith("'=cmd()") for cell in cells)
    formulas = [each for each in cells if re.match("[=+@\t-]", each) and not _is_number(each)]
    assert formulas == []


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_training_that_diverges_can_be_read(tmp_path):
    """A mean squared error passes through all of float32 before it is infinite."""
    curve = ((0.5, 2.0), (1.0, 1.07e36), (1.5, 3.3e38), (2.0, math.inf), (2.5, math.nan))
    outcome = kbatch.Outcome("nan", curve, math.nan, {"val_mse": 3e38}, noise_scale=math.inf)
    assert (
        kbatch.Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))).curve[:4] == curve[:4]
    )


def test_ranges():
    assert not any(fits_json(each, Number) for each in (math.nan, math.inf, 1e308, "1", True))
    assert not any(fits_json(each, Seconds) for each in (math.nan, math.inf, -1.0))
    assert not fits_json("x" * 301, Name)
    assert all(fits_json(each, Number) for each in (0.0, -5, 1e20))


def test_json_has_no_control_characters():
    text = json.dumps({"a\x1b": ["b\x07c", "d\u202ee", "f\ng\th", 1.5, None]})
    assert parse_json(text, ValueError) == {"a": ["bc", "de", "f\ng\th", 1.5, None]}
