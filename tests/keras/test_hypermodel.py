"""kbatch.HyperModel around a user's `build` and its own hyperparameters."""

import keras
import keras_tuner
import pytest
from short_searches import build, hyperparameters_of, search, tuner_of

import kbatch
from kbatch import HyperModel, Space
from kbatch.errors import SearchError, SpaceError
from kbatch.records.project import Project
from kbatch.results.loading import load_records


def named_like_axes(hp):
    """As KerasTuner's tutorial does."""
    rate = hp.Choice("learning_rate", [1e-2, 1e-3])
    name = hp.Choice("optimizer", ["adam", "rmsprop"], default="rmsprop")
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    optimizer = keras.optimizers.get({"class_name": name, "config": {"learning_rate": rate}})
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize(("today", "rate"), [({}, 1e-2), ({"learning_rate": 5e-3}, 5e-3)])
def test_an_axis_takes_the_place_of_what_has_its_name(today, rate, points, tmp_path):
    told = f"learning_rate={rate}, optimizer=rmsprop"
    with pytest.warns(UserWarning, match=told):
        tuner = search(
            tuner_of(tmp_path, model=named_like_axes, values=today, max_trials=1), points
        )
    records = load_records(tmp_path / "p")
    baseline, trial = (
        next(each for each in records if each.purpose == purpose)
        for purpose in ("baseline", "search")
    )
    assert baseline.outcome.learning_rate == pytest.approx(rate)
    best = tuner.get_best_hyperparameters()[0]
    assert best.get("learning_rate") == rate  # what build was answered
    assert best.get("optimizer") == trial.recipe.optimizer
    built = tuner.hypermodel.build(best)
    assert type(built.optimizer).__name__.lower() == trial.recipe.optimizer


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

    # seed 2 draws the other kind than the baseline's, which is the first
    tuner = search(tuner_of(tmp_path, model=conditional, max_trials=1, seed=2), points)
    assert {axis.name for axis in tuner.oracle.hyperparameters.space} >= {
        "kind",
        "depth_width",
        "batch_size",
    }
    baseline, trial = load_records(tmp_path / "p")
    assert (baseline.outcome.ended, trial.outcome.ended) == ("horizon", "horizon")
    assert trial.values["kind"] == "deep"
    assert trial.values["depth_width"] in (4, 8)


def opened(tuner, points):
    """The search of a tuner, which has made its model and trained nothing."""
    (x, y), validation = points
    return tuner.hypermodel.terms.open(
        Project(tuner.project_dir), (x, y), {"validation_data": validation}
    )


def test_a_tuner_hypermodel_is_accepted(points, tmp_path):
    class Own(keras_tuner.HyperModel):
        def build(self, hp):
            return build(hp)

    assert opened(tuner_of(tmp_path, model=Own()), points).project.store.records() == []


def test_declared_hyperparameters_reach_the_baseline(points, tmp_path):
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


def test_building_outside_a_search_warns_of_missing_parts(points, tmp_path, recwarn):
    kbatch.register_augmentation("search_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    axes = {"policy": "float32", "optimizer": "adam", "learning_rate": {"adam": 1e-3}}
    space = Space(**axes, batch_size=64, micro_batch_size=16, augmentation="search_noise")
    tuner = search(tuner_of(tmp_path, space=space, max_trials=1), points)
    tuner.get_best_models()
    assert not [
        str(warning.message) for warning in recwarn if "hypermodel.build" in str(warning.message)
    ]
    best = tuner.get_best_hyperparameters()[0]
    wanted = (
        r"(?s)batch_size=16, of which 4 make an "
        r"update.*warm-up.*augmentation \(search_noise\).*kbatch.train\(kbatch.best_recipe"
    )
    with pytest.warns(UserWarning, match=wanted) as caught:
        tuner.hypermodel.build(best)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"then lacks its batch size \(32\)\. Call"):
        HyperModel(build, Space(**axes, batch_size=32), seconds_per_trial=1).build(
            hyperparameters_of(Space(**axes, batch_size=32))
        )


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


def test_hyperparameters_without_effect_are_named_once(points, tmp_path, recwarn):
    tuner = tuner_of(tmp_path, model=with_own_rate, max_trials=1)
    with pytest.warns(UserWarning, match="hyperparameters lr, beta of `build` have no effect"):
        search(tuner, points)
    recwarn.clear()
    search(tuner_of(tmp_path, model=with_own_rate, max_trials=1), points)
    compiled = Space(batch_size=32, policy="float32", optimizer=("sgd", "compiled"))
    tuner = tuner_of(tmp_path / "compiled", model=with_own_rate, space=compiled)
    (x, y), validation = points
    with tuner.hypermodel.searching(tuner, (x, y), {"validation_data": validation}):
        pass  # what is said of the space is said before anything is trained
    assert not [warning for warning in recwarn if "no effect" in str(warning.message)]


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
