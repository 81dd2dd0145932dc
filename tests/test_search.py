"""Real searches with stock tuners."""

import gc
import json
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import HyperModel, Space
from kbatch.device import meter
from kbatch.errors import DataError, ProjectChangedError, SearchError, SpaceError
from kbatch.results.loading import load_records

SECONDS = 0.25
SPACE = Space(batch_size=(16, 32, 64), policy="float32", optimizer=("sgd", "adam"))


def build(hp):
    width = hp.Int("width", 8, 24, step=8)
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def tuner_of(
    directory,
    kind=keras_tuner.RandomSearch,
    model=build,
    space=SPACE,
    max_trials=2,
    objective=None,
    seconds=SECONDS,
    **arguments,
):
    own = {
        name: arguments.pop(name)
        for name in ("metric", "direction", "chance", "target", "loss", "metrics")
        if name in arguments
    }
    own["seed"] = arguments.pop("model_seed", 0)
    hypermodel = HyperModel(model, space, seconds_per_trial=seconds, **own)
    return kind(
        hypermodel,
        objective=objective or kbatch.objective(),
        max_trials=max_trials,
        directory=directory,
        project_name="p",
        **arguments,
    )


def search(tuner, points, **arguments):
    (x, y), validation = points
    tuner.search(x, y, **{"validation_data": validation, "verbose": 0, **arguments})
    return tuner


@pytest.mark.parametrize(
    ("kind", "arguments", "trials"),
    [
        (keras_tuner.RandomSearch, {"seed": 1}, 3),
        (keras_tuner.GridSearch, {}, 4),
        (keras_tuner.BayesianOptimization, {"num_initial_points": 2, "alpha": 0.3, "seed": 1}, 5),
    ],
)
def test_stock_tuners_search_our_axes_and_the_users_own_side_by_side(
    kind, arguments, trials, points, tmp_path
):
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
    wanted = "trial batch_size micro_batch_size optimizer learning_rate learning_rate_at_32 policy augmentation score val_accuracy train_seconds"
    more = "first_step_seconds validation_seconds examples examples_per_second peak_bytes ended baseline"
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


def test_a_confirmation_trains_leaders_and_baseline_with_fresh_seeds_and_is_resumable(
    searched, points
):
    tuner, directory = searched
    (x, y), validation = points
    runs = kbatch.confirm(tuner, x, y, validation, top=2, seeds=2, test_data=validation, verbose=0)
    assert len(runs) == 6
    assert runs.groupby("seed").size().tolist() == [3, 3]
    assert runs.baseline.sum() == 2
    assert not set(runs.seed) & {0}
    np.testing.assert_allclose(runs.test_accuracy, runs.val_accuracy, atol=1e-7)
    size = (directory / "p" / "kbatch" / "records.jsonl").stat().st_size
    again = kbatch.confirm(tuner, x, y, validation, top=2, seeds=2, test_data=validation, verbose=0)
    assert again.score.tolist() == runs.score.tolist()
    assert (directory / "p" / "kbatch" / "records.jsonl").stat().st_size == size


def test_a_search_goes_on_where_it_was(points, tmp_path):
    search(tuner_of(tmp_path, max_trials=2, seed=1), points)
    first = load_records(tmp_path / "p")
    search(tuner_of(tmp_path, max_trials=4, seed=1), points)
    assert load_records(tmp_path / "p")[:3] == first
    assert len(load_records(tmp_path / "p")) == 5


def test_finished_trials_are_answered_from_their_records_when_keras_tuner_forgot_them(
    points, tmp_path
):
    search(tuner_of(tmp_path, seed=1), points)
    first = load_records(tmp_path / "p")
    for file in [*(tmp_path / "p").glob("*.json"), *(tmp_path / "p").glob("trial_*/trial.json")]:
        file.unlink()
    tuner = search(tuner_of(tmp_path, seed=1), points)
    assert load_records(tmp_path / "p") == first
    assert tuner.oracle.get_best_trials()[0].score == max(
        record.score for record in first if not record.baseline
    )
    assert tuner.get_best_models()[0].evaluate(*points[1], verbose=0)[1] == pytest.approx(
        max(first[1:], key=lambda r: r.score).outcome.value
    )


def test_a_recipe_that_is_drawn_again_is_answered_from_its_record_and_has_its_weights(
    points, tmp_path
):
    tuner = tuner_of(tmp_path, max_trials=3, seed=1)
    first = tuner.oracle.populate_space("0")
    tuner.oracle.populate_space = lambda trial_id: {**first, "values": dict(first["values"])}
    search(tuner, points)
    assert [record.trial for record in load_records(tmp_path / "p")] == [-1, 0]
    best = tuner.oracle.get_best_trials(3)
    assert len({trial.score for trial in best}) == 1
    values = {model.evaluate(*points[1], verbose=0)[1] for model in tuner.get_best_models(3)}
    assert len(values) == 1


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


def test_epochs_set_the_horizon_by_the_baseline_and_once(points, tmp_path):
    search(tuner_of(tmp_path, seconds=None, max_trials=1), points, epochs=5)
    facts = json.loads((tmp_path / "p" / "kbatch" / "project.json").read_text())
    baseline = load_records(tmp_path / "p")[0].outcome
    assert facts["goal"]["seconds"] == facts["measured_horizon_seconds"]
    assert baseline.ended == "horizon"
    assert 0.1 * 95 < baseline.updates < 10 * 95  # 5 epochs of 19 updates, on a clock
    search(tuner_of(tmp_path, seconds=None, max_trials=2), points, epochs=5)
    assert json.loads((tmp_path / "p" / "kbatch" / "project.json").read_text()) == facts


@pytest.mark.parametrize(
    ("seconds", "arguments"),
    [(None, {}), (1.0, {"epochs": 3}), (None, {"epochs": 0})],
    ids=["neither", "both", "no epochs"],
)
def test_either_seconds_or_epochs(seconds, arguments, points, tmp_path):
    with pytest.raises(SearchError, match="epochs"):
        search(tuner_of(tmp_path, seconds=seconds), points, **arguments)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"space": Space(batch_size=(16, 32), policy="float32")}, "space.batch_size was"),
        ({"seconds": 0.5}, "seconds_per_trial was 0.25 and is now 0.5"),
        ({"model_seed": 3}, "seed was 0 and is now 3"),
        ({"target": 0.9}, "target was None and is now 0.9"),
    ],
)
def test_a_changed_project_is_refused_on_resume(change, text, points, tmp_path):
    search(tuner_of(tmp_path, max_trials=1), points)
    records = (tmp_path / "p" / "kbatch" / "records.jsonl").read_bytes()
    with pytest.raises(ProjectChangedError, match=text):
        search(tuner_of(tmp_path, max_trials=2, **change), points)
    assert (tmp_path / "p" / "kbatch" / "records.jsonl").read_bytes() == records


def test_changed_data_are_refused_on_resume(points, tmp_path):
    search(tuner_of(tmp_path, max_trials=1), points)
    (x, y), validation = points
    with pytest.raises(ProjectChangedError, match="data.training.checksum"):
        search(tuner_of(tmp_path, max_trials=2), ((x + 1, y), validation))


def test_out_of_memory_and_nan_do_not_stop_a_search(points, tmp_path):
    class Hungry(keras.layers.Layer):
        def call(self, x, training=False):
            if training and self.compute_dtype == "float16":
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return x

    def hungry():
        return keras.Sequential(
            [keras.Input((12,)), Hungry(), keras.layers.Dense(1, "sigmoid", dtype="float32")]
        )

    space = Space(policy="mixed_float16", batch_size=(16, 32, 64))
    arguments = {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
    tuner = search(tuner_of(tmp_path, model=hungry, space=space, max_trials=4, **arguments), points)
    assert [record.outcome.ended for record in load_records(tmp_path / "p")] == ["horizon"] + 4 * [
        "out_of_memory"
    ]
    assert all(trial.status == "COMPLETED" for trial in tuner.oracle.trials.values())


def test_out_of_memory_in_build_is_an_outcome_too(points, tmp_path):
    class Trained(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return self

        def on_train_end(self, logs=None):
            trained.append(1)

    def greedy(hp):
        if len(trained) == 2:  # the baseline and the first trial
            trained.append(1)
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return build(hp)

    trained = []
    search(tuner_of(tmp_path, model=greedy, max_trials=3), points, callbacks=[Trained()])
    assert [record.outcome.ended for record in load_records(tmp_path / "p")] == [
        "horizon",
        "horizon",
        "out_of_memory",
        "horizon",
    ]


def test_a_bug_in_build_stops_the_search_at_once_and_is_not_a_crash(points, tmp_path):
    calls = []

    def buggy(hp):
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError("a bug")
        return build(hp)

    with pytest.raises(keras_tuner.errors.FatalError, match="ZeroDivisionError: a bug"):
        for _ in range(5):
            search(tuner_of(tmp_path, model=buggy, max_trials=10), points)


def test_a_trial_whose_process_died_twice_is_crashed_and_scores_zero(points, tmp_path):
    tuner = tuner_of(tmp_path, max_trials=1, seed=1)
    search(tuner, points)
    path = tmp_path / "p" / "kbatch" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # the baseline, and the trial begun twice
    path.write_text("".join([*lines[:2], lines[2], lines[2]]))
    for file in [*(tmp_path / "p").glob("*.json"), *(tmp_path / "p").glob("trial_*/trial.json")]:
        file.unlink()
    search(tuner_of(tmp_path, max_trials=1, seed=1), points)
    record = load_records(tmp_path / "p")[1]
    assert (record.outcome.ended, record.score) == ("crashed", 0.0)


def test_no_memory_grows_over_trials(points, tmp_path):
    class Bytes(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return self

        def on_train_begin(self, logs=None):
            seen.append(meter.bytes_now())

    def wide(hp):
        layers = [
            keras.Input((12,)),
            keras.layers.Dense(2000, "gelu"),
            keras.layers.Dense(500, "gelu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
        model = keras.Sequential(layers)
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    seen = []
    gc.collect()  # what other tests left behind
    if meter.bytes_now() is None:
        pytest.skip("this device cannot tell its bytes")
    space = Space(batch_size=32, policy="float32", optimizer="adam")
    search(
        tuner_of(tmp_path, model=wide, space=space, max_trials=12, seconds=0.1),
        points,
        callbacks=[Bytes()],
    )
    assert len(seen) == 13
    model_bytes = 4 * (12 * 2000 + 2000 * 500)
    # A trial begins with or without the last one's model still alive, so the levels of both halves
    # are compared;
    # a leak would add six models' weights and slots between them.
    assert max(seen[7:]) - max(seen[1:7]) < model_bytes, seen


def test_a_users_early_stopping_ends_a_trial_and_the_kept_weights_are_checkpointed(
    points, tmp_path
):
    stopping = keras.callbacks.EarlyStopping("val_accuracy", patience=1)
    tuner = search(tuner_of(tmp_path, max_trials=1, seconds=20.0), points, callbacks=[stopping])
    record = load_records(tmp_path / "p")[1]
    assert record.outcome.ended == "callback"
    assert tuner.get_best_models()[0].evaluate(*points[1], verbose=0)[1] == pytest.approx(
        record.outcome.value
    )


def test_the_users_policy_and_seeds_are_untouched(points, tmp_path):
    import random

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        tuner = tuner_of(tmp_path, max_trials=1, space=Space(policy="float32", batch_size=32))
        random.seed(5)
        np.random.seed(5)
        search(tuner, points)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        drawn = random.random(), np.random.rand()
        random.seed(5)
        np.random.seed(5)
        assert drawn[1] == np.random.rand()
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
    assert table.val_mae.notna().all()
    assert (table.score >= 0).all()


def test_an_unknown_metric_stops_the_search_and_lists_those_there_are(points, tmp_path):
    with pytest.raises(SearchError, match=r"val_accuracy, val_loss.*Received: val_f1_accuracy"):
        search(tuner_of(tmp_path, metric="val_f1_accuracy", max_trials=1), points)


def test_a_hyperparameter_with_one_of_our_names_is_refused(tmp_path):
    def clash(hp):
        hp.Int("batch_size", 1, 10)
        return build(hp)

    with pytest.raises(SpaceError, match="batch_size"):
        tuner_of(tmp_path, model=clash)


def test_the_users_conditional_scopes_work_beside_ours(points, tmp_path):
    def conditional(hp):
        kind = hp.Choice("kind", ["flat", "deep"])
        layers = [keras.Input((12,))]
        with hp.conditional_scope("kind", ["deep"]):
            if kind == "deep":
                layers.append(keras.layers.Dense(hp.Choice("depth_width", [4, 8]), "relu"))
        model = keras.Sequential([*layers, keras.layers.Dense(1, "sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    tuner = search(tuner_of(tmp_path, model=conditional, max_trials=3, seed=2), points)
    assert {axis.name for axis in tuner.oracle.hyperparameters.space} >= {
        "kind",
        "depth_width",
        "batch_size",
    }


def test_a_keras_tuner_hypermodel_is_accepted_unless_it_fits_itself(points, tmp_path):
    class Own(keras_tuner.HyperModel):
        def build(self, hp):
            return build(hp)

    class Fitting(Own):
        def fit(self, hp, model, *args, **kwargs):
            return model.fit(*args, **kwargs)

    search(tuner_of(tmp_path, model=Own(), max_trials=1), points)
    assert len(load_records(tmp_path / "p")) == 2
    with pytest.raises(SearchError, match="must not override fit"):
        HyperModel(Fitting(), seconds_per_trial=1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda d: tuner_of(d, objective="val_accuracy"), "objective=kbatch.objective"),
        (lambda d: tuner_of(d, executions_per_trial=2), "executions_per_trial"),
        (lambda d: tuner_of(d, distribution_strategy=tf.distribute.get_strategy()), "one device"),
    ],
)
def test_what_cannot_be_compared_fairly_is_refused_by_name(make, text, points, tmp_path):
    with pytest.raises(SearchError, match=text):
        search(make(tmp_path), points)


def test_hyperband_is_refused_by_name(points, tmp_path):
    hypermodel = HyperModel(build, SPACE, seconds_per_trial=SECONDS)
    tuner = keras_tuner.Hyperband(
        hypermodel, objective=kbatch.objective(), max_epochs=4, directory=tmp_path, project_name="p"
    )
    with pytest.raises(SearchError, match="Hyperband"):
        search(tuner, points)


def test_chief_and_workers_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    with pytest.raises(SearchError, match="one process"):
        HyperModel(build, seconds_per_trial=1).declare_hyperparameters(
            keras_tuner.HyperParameters()
        )


@pytest.mark.parametrize(
    "name", ["batch_size", "steps_per_epoch", "initial_epoch", "validation_freq", "workers"]
)
def test_arguments_of_fit_are_refused_by_name(name, points, tmp_path):
    with pytest.raises(SearchError, match=f"`{name}` must not be passed"):
        search(tuner_of(tmp_path), points, **{name: 3})


def test_a_batch_above_the_number_of_examples_is_refused_before_any_trial(points, tmp_path):
    with pytest.raises(DataError, match="1024"):
        search(tuner_of(tmp_path, space=Space(batch_size=(32, 1024))), points)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def test_a_dataset_that_shuffles_is_the_same_data_in_every_trial(points, tmp_path):
    (x, y), validation = points
    tuner = tuner_of(tmp_path, max_trials=2)
    tuner.search(
        tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600),
        validation_data=validation,
        verbose=0,
    )
    assert len(load_records(tmp_path / "p")) == 3


def test_an_argument_that_was_refused_can_be_corrected_in_the_same_folder(points, tmp_path):
    with pytest.raises(SearchError, match="better than chance"):
        search(tuner_of(tmp_path, target=0.45), points)
    search(tuner_of(tmp_path, target=0.9, max_trials=1), points)
    assert len(load_records(tmp_path / "p")) == 2


def test_what_a_users_hypermodel_declares_reaches_the_baseline_and_is_guarded(points, tmp_path):
    class Declaring(keras_tuner.HyperModel):
        def declare_hyperparameters(self, hp):
            hp.Int("width", 8, 16, step=8)

        def build(self, hp):
            assert hp.get("width") in (8, 16)
            return build(hp)

    class Clashing(Declaring):
        def declare_hyperparameters(self, hp):
            hp.Int("batch_size", 1, 2)

    search(tuner_of(tmp_path / "a", model=Declaring(), max_trials=1), points)
    assert len(load_records(tmp_path / "a" / "p")) == 2
    with pytest.raises(SpaceError, match="batch_size"):
        tuner_of(tmp_path / "b", model=Clashing())


def test_a_confirmation_after_epochs_takes_the_projects_horizon(points, tmp_path):
    tuner = search(tuner_of(tmp_path, seconds=None, max_trials=1), points, epochs=5)
    (x, y), validation = points
    runs = kbatch.confirm(
        tuner,
        x,
        y,
        validation,
        top=1,
        seeds=1,
        test_data=tf.data.Dataset.from_tensor_slices(validation).batch(50),
        verbose=0,
    )
    assert len(runs) == 2
    assert runs.test_accuracy.notna().all()


def test_trials_that_failed_are_not_confirmed(searched):
    from dataclasses import replace

    from kbatch.training.confirmation import leaders

    records = load_records(searched[1] / "p")
    crashed = [
        replace(r, outcome=replace(r.outcome, ended="crashed")) if r.trial == 0 else r
        for r in records
    ]
    assert 0 not in [r.trial for r in leaders(crashed, 10)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"optimizer": keras.optimizers.SGD(1e-9)}, "Received: optimizer="),
        ({"metrics": ["mae"]}, "Received: metrics="),
        ({"loss": "mse"}, "Received: loss="),
    ],
)
def test_a_tuner_that_would_compile_again_is_refused(arguments, text, points, tmp_path):
    hypermodel = HyperModel(build, SPACE, seconds_per_trial=SECONDS)
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=1,
        directory=tmp_path,
        project_name="p",
        **arguments,
    )
    with pytest.raises(SearchError, match=text):
        search(tuner, points)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def test_all_that_is_wrong_is_said_at_once_and_without_keras_tuners_frames(points, tmp_path):
    tuner = tuner_of(tmp_path, space=Space(batch_size=(32, 1024)), executions_per_trial=2)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "b")
    with pytest.raises(
        SearchError, match=r"(?s)3 things.*executions_per_trial.*BackupAndRestore.*1024"
    ) as caught:
        search(tuner, points, callbacks=[backup])
    frames = [str(entry.path) for entry in caught.traceback]
    assert not any("keras_tuner" in path for path in frames)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def other_build(hp):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(hp.Int("width", 8, 24, step=8), "tanh"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def other_loss(hp):
    model = build(hp)
    model.compile("adam", "mse", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def finished(points, tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    search(tuner_of(directory, max_trials=1), points)
    return directory


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        ({"model": other_build}, {}, "signature.architecture was"),
        ({"model": other_loss}, {}, "signature.loss was 'binary_crossentropy' and is now 'mse'"),
        ({}, {"class_weight": {0: 1.0, 1: 100.0}}, "class_weight was None"),
        ({"seconds": 0.5}, {}, "seconds_per_trial was 0.25"),
    ],
    ids=["build", "loss", "class weights", "seconds"],
)
def test_a_search_that_had_finished_is_refused_too_if_it_is_another(
    change, arguments, text, finished, points
):
    with pytest.raises(ProjectChangedError, match=text):
        search(tuner_of(finished, max_trials=1, **change), points, **arguments)


def test_a_finished_search_of_the_same_model_is_answered(finished, points):
    records = load_records(finished / "p")
    search(tuner_of(finished, max_trials=1), points)
    assert load_records(finished / "p") == records


def test_another_device_is_refused(finished, points, monkeypatch):
    monkeypatch.setattr(meter, "device_words", lambda: "another GPU")
    with pytest.raises(ProjectChangedError, match="device was .* and is now 'another GPU'"):
        search(tuner_of(finished, max_trials=1), points)


def test_a_strategys_scope_is_refused(points, tmp_path):
    tuner = tuner_of(tmp_path)
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(SearchError, match="scope"),
    ):
        search(tuner, points)


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


def test_warm_up_takes_at_most_a_tenth_of_what_the_horizon_allows(points, tmp_path):
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


def test_building_outside_of_a_search_warns_of_what_the_model_lacks(points, tmp_path, recwarn):
    kbatch.register_augmentation("search_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    axes = {"policy": "float32", "optimizer": "adam", "learning_rate": {"adam": 1e-3}}
    space = Space(**axes, batch_size=64, micro_batch_size=16, augmentation="search_noise")
    tuner = search(tuner_of(tmp_path, space=space, max_trials=1), points)
    tuner.get_best_models()
    assert not [
        str(warning.message) for warning in recwarn if "hypermodel.build" in str(warning.message)
    ]
    best = tuner.get_best_hyperparameters()[0]
    wanted = r"(?s)batch_size=16, of which 4 make an update.*warm-up.*augmentation \(search_noise\).*kbatch.train\(kbatch.best_recipe"
    with pytest.warns(UserWarning, match=wanted) as caught:
        tuner.hypermodel.build(best)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"then lacks its batch size \(32\)\. Call"):
        HyperModel(build, Space(**axes, batch_size=32), seconds_per_trial=1).build(
            hyperparameters_of(Space(**axes, batch_size=32))
        )


def hyperparameters_of(space):
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    return hp


def with_own_rate(hp):
    inner = hp.Float("l2_rate", 1e-5, 1e-2, sampling="log")
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(8, "relu", kernel_regularizer=keras.regularizers.L2(inner)),
        ]
    )
    model.add(keras.layers.Dense(1, "sigmoid"))
    optimizer = keras.optimizers.Adam(
        hp.Float("lr", 1e-4, 1e-2, sampling="log"), beta_1=hp.Choice("beta", [0.8, 0.9])
    )
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


def test_own_hyperparameters_that_kbatch_replaces_are_named_once_before_the_search(
    points, tmp_path, recwarn
):
    tuner = tuner_of(tmp_path, model=with_own_rate, max_trials=1)
    with pytest.warns(UserWarning, match="hyperparameters lr, beta of `build` have no effect"):
        search(tuner, points)
    recwarn.clear()
    search(tuner_of(tmp_path, model=with_own_rate, max_trials=2), points)
    compiled = Space(batch_size=32, policy="float32", optimizer=("sgd", "compiled"))
    search(
        tuner_of(tmp_path / "compiled", model=with_own_rate, space=compiled, max_trials=1), points
    )
    assert not [warning for warning in recwarn if "no effect" in str(warning.message)]


def test_a_combination_that_build_gives_up_is_a_failed_trial_and_the_search_goes_on(
    points, tmp_path
):
    def picky(hp):
        if hp.Choice("kind", ["good", "bad"]) == "bad":
            raise keras_tuner.errors.FailedTrialError("not this one")
        return build(keras_tuner.HyperParameters())

    space = Space(batch_size=32, policy="float32", optimizer="adam", learning_rate={"adam": 1e-3})
    tuner = search(
        tuner_of(tmp_path, keras_tuner.GridSearch, model=picky, space=space, max_trials=6), points
    )
    statuses = {
        trial.hyperparameters.get("kind"): trial.status for trial in tuner.oracle.trials.values()
    }
    assert statuses == {"good": "COMPLETED", "bad": "FAILED"}


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"space": {"batch_size": [32]}}, SpaceError, "`space` must be a Space"),
        ({"space": Space(augmentation=("none", "filp"))}, SpaceError, "Received: filp"),
        ({"seed": None}, SearchError, "`seed` must be a whole number"),
        ({"target": 75}, SearchError, "from 0 to 1"),
        (
            {"metric": "val_loss", "target": -1.0, "direction": "down"},
            SearchError,
            '"max" or "min"',
        ),
        ({"seconds_per_trial": "60"}, SearchError, "above 0"),
    ],
)
def test_what_a_hypermodel_cannot_use_is_refused_when_it_is_made(arguments, kind, text):
    with pytest.raises(kind, match=text):
        HyperModel(build, **{"seconds_per_trial": 1.0, **arguments})


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
