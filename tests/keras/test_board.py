"""TensorBoard's own backends show a search: rows, columns, numbers and curves."""

import shutil
import warnings
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest
from tensorboard_view import View

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.errors import SearchError
from kbatch.results.loading import load_records

SPACE = Space(
    batch_size=(16, 48), policy="float32", learning_rate={"sgd": (0.01, 0.1), "adam": 0.001}
)


def build(hp):
    width = hp.Int("width", 8, 24, step=8)
    head = hp.Choice("head [a/b]", ["relu", "tanh"])
    layers = [keras.layers.Dense(width, head), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((12,)), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def search(directory, points, callbacks, project="p", trials=2, **arguments):
    tuner = keras_tuner.RandomSearch(
        HyperModel(build, SPACE, seconds_per_trial=0.3),
        objective=kbatch.objective(),
        max_trials=trials,
        directory=directory,
        project_name=project,
        seed=1,
        **arguments,
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, verbose=0, callbacks=callbacks)
    return tuner


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def done(points, tmp_path_factory):
    """A search and its confirmation: its folder, and that of TensorBoard with an odd name."""
    directory = tmp_path_factory.mktemp("done")
    boards = directory / "logs [1] of *"
    tuner = search(directory, points, [keras.callbacks.TensorBoard(boards)])
    (x, y), validation = points
    callbacks = [keras.callbacks.TensorBoard(boards)]
    kbatch.confirm(tuner, x, y, validation, top=1, seeds=2, verbose=0, callbacks=callbacks)
    return directory, boards


@pytest.fixture(scope="module")
def view(done):
    return View(done[1])


def test_each_training_is_one_run_named_by_the_trial(done, view):
    best = max(load_records(done[0] / "p"), key=lambda r: (r.purpose == "search", r.score)).trial
    confirmed = {
        f"confirmation_{who}_seed{n}" for who in ("baseline", f"trial{best}") for n in (1, 2)
    }
    trainings = {"0", "1", "baseline", *confirmed}
    of_keras = {f"{run}/{part}" for run in trainings for part in ("train", "validation")}
    assert view.runs == {".", *trainings, *of_keras}
    assert view.rows().keys() == {"0", "1", "baseline", "baseline, confirmed", f"{best}, confirmed"}


def test_the_columns_are_all_axes_with_their_domains(view):
    domains, metrics = view.columns()
    assert domains == {
        "purpose": {"baseline", "search", "confirmation"},
        "learning_rate": (0, 100),
        "optimizer": {"sgd", "adam", "compiled"},  # the baseline's too
        "learning_rate_sgd": (0.01, 0.1),
        "batch_size": {16, 32, 48},
        "width": (8, 24),
        "head [a/b]": {"relu", "tanh"},
    }
    assert metrics == [
        *("score", "val_accuracy", "train_seconds", "examples_per_second", "peak_bytes")
    ]


def test_a_row_has_the_numbers_of_its_record(done, view):
    rows = view.rows()
    for record in load_records(done[0] / "p"):
        if record.purpose == "confirmation":
            continue
        hparams, metrics, sessions = rows["baseline" if record.baseline else str(record.trial)]
        outcome = record.outcome
        wanted = {
            "final/score": record.score,
            "final/val_accuracy": outcome.value,
            "final/train_seconds": outcome.train_seconds,
            "final/examples_per_second": outcome.examples_per_second,
            "final/peak_bytes": outcome.peak_bytes,
        }
        assert metrics == pytest.approx(wanted, rel=1e-6)
        assert {"batch_size", "optimizer", "purpose", *record.values} <= hparams.keys() | {
            "learning_rate_sgd"
        }
        assert hparams["batch_size"] == record.recipe.batch_size
        assert ("learning_rate_sgd" in hparams) == (record.recipe.optimizer == "sgd")
        used = record.recipe.learning_rate or outcome.learning_rate
        assert hparams["learning_rate"] == pytest.approx(used)
        assert len(sessions) == 1


def test_a_confirmed_row_is_the_mean_over_its_seeds(done, view):
    scores = [
        record.score
        for record in load_records(done[0] / "p")
        if record.purpose == "confirmation" and record.baseline
    ]
    hparams, metrics, sessions = view.rows()["baseline, confirmed"]
    assert metrics["final/score"] == pytest.approx(np.mean(scores), rel=1e-6)
    assert sessions == ["confirmation_baseline_seed1", "confirmation_baseline_seed2"]
    assert hparams["purpose"] == "confirmation"


def test_curves_lie_over_updates_and_over_training_seconds(done, view):
    for record in load_records(done[0] / "p"):
        if record.purpose != "search":
            continue
        outcome, run = record.outcome, str(record.trial)
        seconds, values = zip(*outcome.curve, strict=True)
        steps, times, shown = view.series(run, "curve/val_accuracy")
        assert shown == pytest.approx(values)
        assert tuple(steps) == outcome.curve_updates
        assert sorted(set(steps)) == steps
        assert steps[-1] == outcome.updates
        assert np.diff(times) == pytest.approx(np.diff(seconds), abs=1e-5)
        steps, _, shown = view.series(run, "curve_over_milliseconds/val_accuracy")
        assert shown == pytest.approx(values)
        assert steps == [round(1000 * at) for at in seconds]


def test_a_resumed_search_adds_nothing_twice(done, points):
    before = files(done[1])
    tuner = search(done[0], points, [keras.callbacks.TensorBoard(done[1])])
    (x, y), validation = points
    callbacks = [keras.callbacks.TensorBoard(str(done[1]))]
    kbatch.confirm(tuner, x, y, validation, top=1, seeds=2, verbose=0, callbacks=callbacks)
    assert files(done[1]) == before


def test_a_later_call_brings_what_ran_without_tensorboard(done, points, view):
    """Two callbacks, two folders, and one of them twice."""
    folders = [done[0] / "one", done[0] / "two", done[0] / "one"]
    boards = [keras.callbacks.TensorBoard(folder) for folder in folders]
    search(done[0], points, boards)
    for folder in folders:
        late = View(folder)
        assert late.rows() == view.rows()
        assert late.columns() == view.columns()


def test_a_killed_write_is_made_up_for(done, points):
    folder = done[0] / "killed"
    shutil.copytree(done[1], folder)
    before = {path.relative_to(folder): text for path, text in files(folder).items()}
    (lost,) = (folder / "0").glob("events*")
    lost.rename(f"{lost}.tmp")
    search(done[0], points, [keras.callbacks.TensorBoard(folder)])
    after = {path.relative_to(folder): text for path, text in files(folder).items()}
    assert {name: text for name, text in after.items() if name.suffix != ".tmp"} == before


def test_another_search_in_the_same_folder_is_told_of(done, points):
    folder = done[0] / "shared"
    shutil.copytree(done[1], folder)
    with pytest.warns(UserWarning, match="holds 7 TensorBoard runs of another search"):
        search(done[0], points, [keras.callbacks.TensorBoard(folder)], project="q", trials=1)
    (new,) = [r for r in load_records(done[0] / "q") if r.purpose == "search"]
    hparams, metrics, sessions = View(folder).rows()["0"]
    assert metrics["final/score"] == pytest.approx(new.score, rel=1e-6)


def test_a_folder_that_cannot_be_written_is_refused(points, tmp_path):
    (tmp_path / "file").write_text("mine")
    board = keras.callbacks.TensorBoard(tmp_path / "file" / "logs")
    with pytest.raises(SearchError, match="log_dir of TensorBoard must be a folder"):
        search(tmp_path, points, [board])
    assert not (tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def test_kbatch_train_writes_one_row_into_the_users_folder(points, tmp_path):
    (x, y), validation = points
    recipe = Recipe(batch_size=64, optimizer="sgd", learning_rate=0.1, clip_norm=1.0)
    folder = tmp_path / "by hand"
    for _ in range(2):  # a notebook's cell that runs again
        _, outcome = kbatch.train(
            *(recipe, build, x, y, validation),
            seconds=0.2,
            values={"width": 16},
            callbacks=[keras.callbacks.TensorBoard(folder)],
        )
    view = View(folder)
    assert view.runs == {".", "train", "validation"}
    rows = view.rows()
    assert rows.keys() == {"by hand"}
    hparams, _, _ = rows["by hand"]
    assert (hparams["batch_size"], hparams["clip_norm"], hparams["ema"]) == (64, 1.0, 0.0)
    assert (hparams["width"], hparams["head [a/b]"]) == (16, "relu")
    assert view.series(".", "final/val_accuracy")[2] == pytest.approx([outcome.value])
    assert "final/score" not in view.events.PluginRunToTagToContent("scalars")["."]


def test_without_the_callback_nothing_is_written(points, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The baseline has your hyperparameters")
        search(tmp_path, points, None, trials=1)
    assert not list(tmp_path.rglob("events*"))
