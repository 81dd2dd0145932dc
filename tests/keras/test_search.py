"""Real searches with stock tuners: what they search, record and give back."""

import json
import random

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from short_searches import SECONDS, search, tuner_of
from short_searches import build as with_width

import kbatch
from kbatch import Space
from kbatch.records.project import Project
from kbatch.results.loading import load_records

GRID = Space(
    batch_size=(16, 64), policy="float32", learning_rate={"sgd": [0.01, 0.1], "adam": 1e-3}
)


def checked_table(tuner, directory, repeats=False):
    """The table of a search, which has every recipe that the tuner drew, once, in its order."""
    table = kbatch.results.load(directory / "p")
    trials = tuner.oracle.trials
    drawn = [
        tuple(trials[str(number)].hyperparameters.values.items()) for number in range(len(trials))
    ]
    new = [number for number in range(len(trials)) if drawn[number] not in drawn[:number]]
    assert len(new) == len(trials) or repeats
    assert table.trial.tolist() == [-1, *new]
    assert list(table.baseline) == [True] + len(new) * [False]
    assert set(table.hp_width.dropna()) <= {8, 16, 24}
    assert table[~table.baseline].score.max() == pytest.approx(
        tuner.oracle.get_best_trials()[0].score
    )
    return table


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    """A random search, its folder, and the paths of the weights that it wrote."""
    directory, written = tmp_path_factory.mktemp("searched"), []
    save = keras.Model.save_weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            keras.Model,
            "save_weights",
            lambda self, path, *rest, **more: (
                written.append(str(path)) or save(self, path, *rest, **more)
            ),
        )
        tuner = search(tuner_of(directory, max_trials=3, seed=1, seconds=0.5), points)
    return tuner, directory, written


def test_a_random_search_draws_kbatchs_axes_and_the_users(searched):
    assert len(checked_table(*searched[:2])) == 4


def test_a_grid_search_goes_through_kbatchs_axes_and_the_users(points, tmp_path):
    tuner = tuner_of(tmp_path, keras_tuner.GridSearch, space=GRID, max_trials=3)
    table = checked_table(search(tuner, points), tmp_path)
    assert len(table) == 4
    assert table.batch_size.tolist()[1:3] == [16, 64] or table.hp_width.nunique() > 1


@pytest.mark.slow
def test_a_bayesian_search_may_propose_a_recipe_again(points, tmp_path):
    kind, arguments = keras_tuner.BayesianOptimization, {"num_initial_points": 2, "alpha": 0.3}
    tuner = search(tuner_of(tmp_path, kind, max_trials=4, seed=1, **arguments), points)
    assert len(tuner.oracle.trials) == 4
    checked_table(tuner, tmp_path, repeats=True)


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
    tuner, directory, _ = searched
    for model, trial in zip(tuner.get_best_models(3), tuner.oracle.get_best_trials(3), strict=True):
        value = model.evaluate(*points[1], verbose=0, return_dict=True)["accuracy"]
        record = next(r for r in load_records(directory / "p") if r.trial == int(trial.trial_id))
        assert value == pytest.approx(record.outcome.value, abs=1e-7)


def test_every_part_of_a_trial_is_explained(searched):
    outcomes = [record.outcome for record in load_records(searched[1] / "p")]
    shares = [outcome.unexplained_seconds / outcome.seconds["total"] for outcome in outcomes]
    # A busy machine may stop any one trial between two clocks; a part left out is in all.
    assert min(map(abs, shares)) <= 0.02


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


def test_at_most_two_checkpoints_are_written_a_trial(searched):
    written = searched[2]
    assert 1 <= max(written.count(path) for path in set(written)) <= 2


def draws():
    return random.random(), np.random.rand(), float(tf.random.uniform(()))


@pytest.fixture(scope="module")
def regressed(points, tmp_path_factory):
    """The folder of a search by an error, under a policy of the user's own.

    With it, the policy and the draws after the search, and those draws without a search.
    """

    def regression(hp):
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    directory = tmp_path_factory.mktemp("regressed")
    judged = {"metric": "val_mae", "direction": "min", "chance": 0.5}
    space = Space(policy="float32", batch_size=32)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        tuner = tuner_of(directory, model=regression, space=space, max_trials=1, **judged)
        keras.utils.set_random_seed(5)
        expected = draws()
        keras.utils.set_random_seed(5)
        search(tuner, points)
        return directory, keras.config.dtype_policy().name, draws(), expected
    finally:
        keras.config.set_dtype_policy("float32")


def test_the_users_policy_and_seeds_are_untouched(regressed):
    _, policy, drawn, expected = regressed
    assert policy == "mixed_bfloat16"
    assert drawn == expected


def test_another_metric_can_be_scored(regressed):
    table = kbatch.results.load(regressed[0] / "p")
    baseline, trial = load_records(regressed[0] / "p")
    assert table.val_mae.tolist() == [baseline.outcome.value, trial.outcome.value]
    # lower is better, and what no three measurements in a row are below scores 0
    for record in (baseline, trial):
        curve = record.outcome.curve
        assert record.score == kbatch.score(curve, SECONDS, 0.5, direction="min")
        below = [value < 0.5 for _, value in curve]
        assert (record.score > 0) == any(map(all, zip(below, below[1:], below[2:], strict=False)))


@pytest.fixture(scope="module")
def warmed(points, tmp_path_factory):
    """The records of a search over data that shuffle, with a warm-up as long as many horizons."""
    space = Space(
        policy="float32",
        optimizer="sgd",
        learning_rate={"sgd": 0.01},
        batch_size=64,
        warmup_passes=1000.0,
    )
    (x, y), validation = points
    directory = tmp_path_factory.mktemp("warmed")
    tuner_of(directory, space=space, max_trials=2).search(
        tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600),
        validation_data=validation,
        verbose=0,
    )
    return load_records(directory / "p")


def test_a_dataset_that_shuffles_is_the_same_data_in_every_trial(warmed):
    assert len(warmed) == 3


def test_warm_up_takes_at_most_a_tenth_of_the_horizon(warmed):
    baseline, *trials = warmed
    most = 0.1 * baseline.outcome.examples_per_second * SECONDS / 64
    for trial in trials:
        assert 0 < trial.recipe.warmup_updates <= most
        assert any("warm-up was cut from 4688 to" in remark for remark in trial.outcome.remarks)


@pytest.mark.parametrize("kind", [keras_tuner.RandomSearch, keras_tuner.GridSearch])
def test_default_batch_sizes_above_the_data_are_left_out(kind, build, points, tmp_path):
    (x, y), validation = points
    tuner = tuner_of(
        tmp_path,
        kind,
        model=build,  # without hyperparameters of its own: two sizes are two trials, and no more
        space=Space(policy="float32", optimizer="sgd", learning_rate={"sgd": 0.01}),
        max_trials=4,
    )
    with pytest.warns(
        UserWarning,
        match="Batch sizes 64, 128, 256, 512 are left out: there are 50 training examples",
    ):
        search(tuner, ((x[:50], y[:50]), validation))
    assert {record.recipe.batch_size for record in load_records(tmp_path / "p")} == {16, 32}
    if kind is keras_tuner.RandomSearch:  # nor does a confirmation ask for them, after any tuner
        kbatch.confirm(tuner, x[:50], y[:50], validation, top=1, seeds=1, verbose=0)
        assert len(kbatch.results.load_confirmations(tuner)) == 2


def test_keras_tuners_own_hypermodels_are_searched_as_ever(points, tmp_path):
    tuner = keras_tuner.RandomSearch(
        with_width, objective="val_accuracy", max_trials=1, directory=tmp_path, project_name="own"
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, epochs=1, verbose=0)
    assert tuner.oracle.get_best_trials()[0].status == "COMPLETED"


def test_numpys_numbers_are_written_into_the_project_as_numbers(points, tmp_path):
    numbers = {
        "target": np.float32(0.75),
        "chance": np.float64(0.5),
        "seconds": np.float32(0.25),
        "model_seed": np.int64(3),
    }
    hypermodel, (x, y), validation = tuner_of(tmp_path, **numbers).hypermodel, *points
    project = Project(tmp_path / "p")
    hypermodel.terms.open(project, (x, y), {"validation_data": validation})
    facts = json.loads((project.directory / "kbatch" / "project.json").read_text())
    assert [facts[name] for name in ("target", "chance", "seconds_per_trial", "seed")] == [
        0.75,
        0.5,
        0.25,
        3,
    ]
