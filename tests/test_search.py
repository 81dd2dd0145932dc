"""Real searches with stock tuners: what they search, record and give back."""

import json

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from short_searches import SECONDS, SPACE, build, search, tuner_of

import kbatch
from kbatch import Space
from kbatch.results.loading import load_records
from kbatch.training import search_terms


@pytest.mark.parametrize(
    ("kind", "arguments", "trials"),
    [
        (keras_tuner.RandomSearch, {"seed": 1}, 3),
        (keras_tuner.GridSearch, {}, 4),
        (keras_tuner.BayesianOptimization, {"num_initial_points": 2, "alpha": 0.3, "seed": 1}, 5),
    ],
)
def test_stock_tuners_search_kbatchs_axes_and_the_users(kind, arguments, trials, points, tmp_path):
    space = (
        Space(
            batch_size=(16, 64), policy="float32", learning_rate={"sgd": [0.01, 0.1], "adam": 1e-3}
        )
        if kind is keras_tuner.GridSearch
        else SPACE
    )
    tuner = search(tuner_of(tmp_path, kind, space=space, max_trials=trials, **arguments), points)
    table = kbatch.results.load(tmp_path / "p")
    drawn = [
        tuple(tuner.oracle.trials[str(number)].hyperparameters.values.items())
        for number in range(trials)
    ]
    # only BayesianOptimization proposes a recipe again
    new = [number for number in range(trials) if drawn[number] not in drawn[:number]]
    assert len(new) == trials or kind is keras_tuner.BayesianOptimization
    assert table.trial.tolist() == [-1, *new]
    assert list(table.baseline) == [True] + len(new) * [False]
    assert set(table.hp_width.dropna()) <= {8, 16, 24}
    assert table[~table.baseline].score.max() == pytest.approx(
        tuner.oracle.get_best_trials()[0].score
    )
    if kind is keras_tuner.GridSearch:
        assert table.batch_size.tolist()[1:3] == [16, 64] or table.hp_width.nunique() > 1


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    directory = tmp_path_factory.mktemp("searched")
    return search(tuner_of(directory, max_trials=3, seed=1, seconds=0.5), points), directory


def test_the_table_has_the_columns_that_users_rely_on(searched):
    table = kbatch.results.load(searched[1] / "p")
    wanted = (
        "trial batch_size micro_batch_size optimizer learning_rate "
        "learning_rate_at_32 policy augmentation score val_accuracy "
        "train_seconds"
    )
    more = (
        "first_step_seconds validation_seconds examples examples_per_second "
        "peak_bytes ended baseline"
    )
    assert set(table.columns) >= {*wanted.split(), *more.split()}


def test_the_best_model_evaluates_to_the_recorded_value(searched, points):
    tuner, directory = searched
    for model, trial in zip(tuner.get_best_models(3), tuner.oracle.get_best_trials(3), strict=True):
        value = model.evaluate(*points[1], verbose=0, return_dict=True)["accuracy"]
        record = next(r for r in load_records(directory / "p") if r.trial == int(trial.trial_id))
        assert value == pytest.approx(record.outcome.value, abs=1e-7)


def test_every_part_of_a_trial_is_explained(searched):
    for record in load_records(searched[1] / "p"):
        assert abs(record.outcome.unexplained_seconds) <= 0.02 * record.outcome.seconds["total"]


def test_keras_tuner_gets_finite_floats(searched):
    for trial in searched[0].oracle.trials.values():
        values = {
            name: trial.metrics.get_last_value(name)
            for name in ("score", "val_accuracy", "train_seconds", "examples_per_second", "oom")
        }
        assert all(isinstance(value, float) and np.isfinite(value) for value in values.values())


def test_records_are_lines_of_json_with_a_start_before_each(searched):
    lines = [
        json.loads(line)
        for line in (searched[1] / "p" / "kbatch" / "records.jsonl").read_text().splitlines()
    ]
    assert [line["event"] for line in lines] == ["started", "ended"] * 4


def test_at_most_two_checkpoints_are_written_a_trial(points, tmp_path, monkeypatch):
    written = []
    save = keras.Model.save_weights
    monkeypatch.setattr(
        keras.Model,
        "save_weights",
        lambda self, path, *rest, **more: (
            written.append(str(path)) or save(self, path, *rest, **more)
        ),
    )
    search(tuner_of(tmp_path, max_trials=2), points)
    assert 1 <= max(written.count(path) for path in set(written)) <= 2


def test_epochs_set_the_horizon_by_the_baseline_and_once(points, tmp_path, monkeypatch):
    medians, measure = [], search_terms.median_update_seconds
    monkeypatch.setattr(
        search_terms,
        "median_update_seconds",
        lambda *args: medians.append(measure(*args)) or medians[-1],
    )
    search(tuner_of(tmp_path, seconds=None, max_trials=1), points, epochs=5)
    facts = json.loads((tmp_path / "p" / "kbatch" / "project.json").read_text())
    assert load_records(tmp_path / "p")[0].outcome.ended == "horizon"
    assert facts["goal"]["seconds"] == facts["measured_horizon_seconds"]
    assert facts["goal"]["seconds"] == pytest.approx(5 * 19 * medians[0])  # 600 examples by 32
    search(tuner_of(tmp_path, seconds=None, max_trials=2), points, epochs=5)
    assert json.loads((tmp_path / "p" / "kbatch" / "project.json").read_text()) == facts
    assert len(medians) == 1


def test_the_users_policy_and_seeds_are_untouched(points, tmp_path):
    import random

    def draws():
        return random.random(), np.random.rand(), float(tf.random.uniform(()))

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        tuner = tuner_of(tmp_path, max_trials=1, space=Space(policy="float32", batch_size=32))
        keras.utils.set_random_seed(5)
        expected = draws()
        keras.utils.set_random_seed(5)
        search(tuner, points)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        assert draws() == expected
    finally:
        keras.config.set_dtype_policy("float32")


def test_another_metric_can_be_scored(points, tmp_path):
    def regression(hp):
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    search(
        tuner_of(
            tmp_path, model=regression, metric="val_mae", direction="min", chance=0.5, max_trials=1
        ),
        points,
    )
    table = kbatch.results.load(tmp_path / "p")
    baseline, trial = load_records(tmp_path / "p")
    assert table.val_mae.tolist() == [baseline.outcome.value, trial.outcome.value]
    # lower is better, and what is above chance scores 0
    for record in (baseline, trial):
        scored = kbatch.score(record.outcome.curve, SECONDS, 0.5, direction="min")
        assert record.score == scored
        assert (record.score > 0) == (min(value for _, value in record.outcome.curve) < 0.5)


def test_a_dataset_that_shuffles_is_the_same_data_in_every_trial(points, tmp_path):
    (x, y), validation = points
    tuner = tuner_of(tmp_path, max_trials=2)
    tuner.search(
        tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600),
        validation_data=validation,
        verbose=0,
    )
    assert len(load_records(tmp_path / "p")) == 3


@pytest.mark.parametrize("kind", [keras_tuner.RandomSearch, keras_tuner.GridSearch])
def test_default_batch_sizes_above_the_data_are_left_out(kind, points, tmp_path):
    (x, y), validation = points
    tuner = tuner_of(
        tmp_path,
        kind,
        space=Space(policy="float32", optimizer="sgd", learning_rate={"sgd": 0.01}),
        max_trials=4,
    )
    with pytest.warns(
        UserWarning,
        match="Batch sizes 64, 128, 256, 512 are left out: there are 50 training examples",
    ):
        search(tuner, ((x[:50], y[:50]), validation))
    assert {record.recipe.batch_size for record in load_records(tmp_path / "p")} == {16, 32}
    # nor does a confirmation ask for them
    kbatch.confirm(tuner, x[:50], y[:50], validation, top=1, seeds=1, verbose=0)
    assert len(kbatch.results.load_confirmations(tuner)) == 2


def test_keras_tuners_own_hypermodels_are_searched_as_ever(points, tmp_path):
    tuner = keras_tuner.RandomSearch(
        build, objective="val_accuracy", max_trials=1, directory=tmp_path, project_name="own"
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, epochs=1, verbose=0)
    assert tuner.oracle.get_best_trials()[0].status == "COMPLETED"


def test_warm_up_takes_at_most_a_tenth_of_the_horizon(points, tmp_path):
    space = Space(
        policy="float32",
        optimizer="sgd",
        learning_rate={"sgd": 0.01},
        batch_size=64,
        warmup_passes=1000.0,
    )
    search(tuner_of(tmp_path, space=space, max_trials=1), points)
    baseline, trial = load_records(tmp_path / "p")
    assert (
        0 < trial.recipe.warmup_updates <= 0.1 * baseline.outcome.examples_per_second * SECONDS / 64
    )
    assert any("warm-up was cut from 4688 to" in remark for remark in trial.outcome.remarks)


def test_numpys_numbers_are_written_into_the_project_as_numbers(points, tmp_path):
    numbers = {
        "target": np.float32(0.75),
        "chance": np.float64(0.5),
        "seconds": np.float32(0.25),
        "model_seed": np.int64(3),
    }
    search(tuner_of(tmp_path, max_trials=1, **numbers), points)
    facts = json.loads((tmp_path / "p" / "kbatch" / "project.json").read_text())
    assert [facts[name] for name in ("target", "chance", "seconds_per_trial", "seed")] == [
        0.75,
        0.5,
        0.25,
        3,
    ]
    search(tuner_of(tmp_path / "epochs", max_trials=1, seconds=None), points, epochs=np.int64(1))
