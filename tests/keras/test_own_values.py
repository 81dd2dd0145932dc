"""The user's own hyperparameters: what the baseline has today, and what a claim owes to them."""

import json
import math
import warnings

import keras
import keras_tuner
import numpy as np
import pytest
from result_records import GOAL, record

import kbatch
from kbatch.checks.arguments import look_at_own_values
from kbatch.checks.check import Subject
from kbatch.errors import SearchError
from kbatch.model_spec import ModelSpec, values_of
from kbatch.models.maker import GuardedHyperParameters
from kbatch.results.claim import claim_of
from kbatch.results.loading import load_records
from kbatch.results.sentences import claim_sentences, confirmed_table, headline
from kbatch.results.words import own_values

TODAY = {"layers": 2, "width_0": 16, "width_1": 4, "dropout": True, "lr": 3e-3}


def build(hp):
    model = keras.Sequential([keras.Input((12,))])
    for place in range(hp.Int("layers", 1, 3)):
        model.add(keras.layers.Dense(hp.Int(f"width_{place}", 4, 16, step=4), "relu"))
    if hp.Boolean("dropout"):
        model.add(keras.layers.Dropout(hp.Float("rate", 0.1, 0.5, default=0.2)))
    model.add(keras.layers.Dense(1, "sigmoid"))
    rate = hp.Float("lr", 1e-4, 1e-1, sampling="log")
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
    return model


def hyperparameters(values):
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values)
    build(hp)
    return hp


class Tuned:
    """A tuner after its search, as far as `values=` looks at it."""

    oracle = None

    def get_best_hyperparameters(self, count):
        return [hyperparameters(TODAY)][:count]


def trial_json(values, score, status="COMPLETED", metrics=None):
    metrics = metrics or {"val_loss": ("min", score), "val_accuracy": ("max", 1 - score)}
    return {
        "trial_id": "0",
        "hyperparameters": {"space": [], "values": {**values, "tuner/epochs": 3}},
        "metrics": {
            "metrics": {
                name: {"direction": way, "observations": [{"value": [value], "step": 0}]}
                for name, (way, value) in metrics.items()
            }
        },
        "score": score,
        "status": status,
    }


def project(folder, trials):
    for number, state in enumerate(trials):
        place = folder / f"trial_{number:02d}"
        place.mkdir(parents=True)
        (place / "trial.json").write_text(json.dumps(state))
    return folder


SOURCES = {
    "a mapping": lambda folder: TODAY,
    "hyperparameters": lambda folder: hyperparameters(TODAY),
    "a tuner": lambda folder: Tuned(),
    "its folder": lambda folder: project(
        folder / "p",
        [
            trial_json(TODAY | {"layers": 1}, 0.4),
            trial_json(TODAY, 0.3),
            trial_json({}, 0.1, "FAILED"),
        ],
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_values_come_from_what_holds_them(source, tmp_path):
    values = values_of(SOURCES[source](tmp_path))
    assert {name: values[name] for name in TODAY} == TODAY
    assert "tuner/epochs" not in values


def test_the_best_of_a_folder_is_by_its_objective(tmp_path):
    states = [
        trial_json({"a": place}, score, metrics={"val_auc": ("max", score), "val_loss": ("min", 9)})
        for place, score in enumerate((0.4, 0.9, 0.6))
    ]
    assert values_of(project(tmp_path / "p", states)) == {"a": 1}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["units"], "must be a mapping"),
        ("nowhere", "no such folder"),
        (3, "Received: int"),
    ],
)
def test_what_holds_no_values_is_refused(given, text):
    with pytest.raises(SearchError, match=text):
        ModelSpec(build, values=given)


def test_a_folder_that_hides_its_direction_is_refused(tmp_path):
    metrics = {"a": ("max", 0.5), "b": ("min", 0.5)}
    folder = project(tmp_path / "p", [trial_json({"units": 1}, 0.5, metrics=metrics)])
    with pytest.raises(SearchError, match="leave both open"):
        values_of(folder)


def test_files_that_are_no_trials_are_left_out(tmp_path):
    folder = project(tmp_path / "p", [trial_json(TODAY, 0.3), ["no trial"], {"score": 1}])
    (folder / "trial_01" / "trial.json").write_text("{half")
    assert values_of(folder)["layers"] == 2


def plain(hp):
    width = hp.Int("width", 4, 16, step=4, default=8)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(width, "relu")])
    model.add(keras.layers.Dense(1, "sigmoid"))
    if hp.Boolean("flag", default=False) or hp.Choice("one", ["only"]) != "only":
        raise ValueError("another value than the default")
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def found(build, values=None, optimizer="compiled"):
    maker = kbatch.models.maker.ModelMaker.of(ModelSpec(build, values=values))
    rate = None if optimizer == "compiled" else 0.1
    recipe = kbatch.Recipe(32, optimizer=optimizer, learning_rate=rate)
    return look_at_own_values(Subject.of_training(maker, None, recipe))


UNSAID = {
    "nothing is given": (None, "compiled", ["layers=1", "width_0=4", "dropout=False", "lr=0.0001"]),
    "some are given": ({"layers": 2, "lr": 0.01}, "compiled", ["width_0=4", "width_1=4"]),
    "the optimizer is the recipe's": (
        {"layers": 1, "width_0": 8},
        "sgd",
        ["dropout=False"],
    ),
}


@pytest.mark.parametrize("case", UNSAID)
def test_values_that_nobody_chose_are_named(case):
    values, optimizer, named = UNSAID[case]
    finding = found(build, values, optimizer)
    assert not finding.holds
    words = finding.sentence.split(": ")[1].split(";")[0].split(", ")
    assert set(named) <= set(words)
    assert len(words) == len(named) + ("dropout=False" in words and "dropout=False" not in named)


def test_values_and_defaults_that_somebody_chose_are_not():
    assert found(build, TODAY).holds
    defaults = found(plain)
    assert defaults.holds
    assert "width=8" in defaults.sentence
    assert found(plain, {"width": 8, "flag": False, "one": "only"}).sentence == ""


@pytest.mark.parametrize(
    "wrong", [{"layers": "2"}, {"layers": 2.0}, {"layers": True}, {"dropout": 1}, {"lr": "1e-3"}]
)
def test_values_of_another_kind_are_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(SearchError, match=rf"the hyperparameter {name} .*Received: {value!r}"):
        found(build, {**TODAY, **wrong})


def test_a_number_may_have_a_whole_default():
    hp = keras_tuner.HyperParameters()
    guarded = GuardedHyperParameters(hp, frozenset(), {"a": 0.5, "b": 3, "c": 0.25, "d": 1.5})
    assert guarded.Float("a", 0.1, 2.0, default=1) == 0.5
    assert guarded.Float("b", 0.1, 5.0) == 3
    assert guarded.Choice("c", [0.25, 1.0]) == 0.25
    assert guarded.Fixed("d", 1) == 1.5
    with pytest.raises(SearchError, match="a number. Received: nan"):
        GuardedHyperParameters(hp, frozenset(), {"e": math.nan}).Float("e", 0.0, 1.0)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 12)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return x[:160], y[:160], (x[160:], y[160:])


SPACE = kbatch.Space(batch_size=(16, 32), policy="float32", optimizer="sgd")


def searched(folder, values, own=build, **arguments):
    hypermodel = kbatch.HyperModel(own, SPACE, seconds_per_trial=0.2, values=values)
    tuner = kbatch.Tuner(hypermodel, directory=str(folder), project_name="p")
    x, y, validation = data()
    tuner.search(x, y, validation_data=validation, verbose=0, max_trials=2, **arguments)
    return tuner


def test_the_baseline_has_todays_values(tmp_path):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tuner = searched(tmp_path, {**TODAY, "batch_size": 16})
    baseline, first, *_ = load_records(tuner)
    assert baseline.recipe.batch_size == 16
    assert own_values(baseline) == {**TODAY, "rate": 0.2}
    begun = {name: value for name, value in TODAY.items() if name != "lr"}
    # the first trial is the start, or one variation of it
    assert sum(own_values(first)[name] != value for name, value in begun.items()) <= 1
    told = " ".join(str(each.message) for each in warned)
    assert "lowest values" not in told
    assert "Only the baseline's own optimizer has them: lr=0.003" in told
    assert all("lr" not in each.values for each in load_records(tuner)[1:])
    with pytest.raises(kbatch.errors.ProjectChangedError, match="values.width_0 was 16"):
        searched(tmp_path, {**TODAY, "batch_size": 16, "width_0": 8})


def test_a_search_and_a_training_name_what_nobody_chose(tmp_path):
    with pytest.warns(UserWarning, match="The baseline has .* layers=1, width_0=4"):
        tuner = searched(tmp_path, None)
    assert "layers=1, width_0=4" in str(kbatch.report(tuner))
    x, y, validation = data()
    with pytest.warns(UserWarning, match=r"The model has .*kbatch.retrain\(tuner\)"):
        _, outcome = kbatch.train(kbatch.best_recipe(tuner), build, x, y, validation, updates=2)
    assert any("layers=1, width_0=4" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("train", [True, False])
def test_values_that_build_never_has_are_refused(train, tmp_path):
    values = {"layers": 1, "width_0": 4, "width_2": 8, "rate": 0.1}
    x, y, validation = data()
    recipe = kbatch.Recipe(32, optimizer="sgd", learning_rate=0.1)
    kbatch.train(recipe, build, x, y, validation, updates=1, values=values)
    with pytest.raises(SearchError, match="Received: widht_0"):
        if train:
            wrong = {"widht_0": 8, **values}
            kbatch.train(recipe, build, x, y, validation, updates=1, values=wrong)
        else:
            searched(tmp_path, {"widht_0": 8, **values})


def test_an_earlier_recipe_among_the_values_is_told():
    with pytest.warns(UserWarning, match="values of batch_size, optimizer are left out"):
        model = kbatch.HyperModel(
            build, seconds_per_trial=1, values={"optimizer": "sgd", "batch_size": 64}
        )
    assert model.space.baseline.batch_size == 32


def test_what_a_tuner_fixes_is_the_baselines_too(tmp_path):
    hp = keras_tuner.HyperParameters()
    hp.Fixed("lr", 0.02)
    hypermodel = kbatch.HyperModel(build, SPACE, seconds_per_trial=0.2)
    keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        hyperparameters=hp,
        directory=str(tmp_path),
    )
    model = hypermodel.terms.model_maker.raw("float32")
    assert float(model.optimizer.learning_rate) == pytest.approx(0.02)


OWN, BEST = {"units": 32, "kind": "a", "gone": 1}, {"units": 64, "kind": "a", "batch_size": 256}


def confirmed(part=0.2, seeds=3, best=BEST, whole=0.4):
    """A confirmation whose recipe alone gains `part` of what it gains with its own values."""
    found = [record(-1, 0.1, "baseline", values=OWN), record(0, whole, values=best)]
    for seed in range(1, seeds + 1):
        for trial, level, purpose, values, size in (
            (-1, 0.1, "confirmation", OWN, 32),
            (0, whole, "confirmation", best, 256),
            (0, part, "parted", {**OWN, "batch_size": 256}, 256),
        ):
            if level is not None:
                noisy = level + 0.003 * seed
                found.append(record(trial, noisy, purpose, seed, values=values, batch_size=size))
    return found


def said(records, lowest=None):
    claim = claim_of(records, GOAL, 4000, lowest=lowest)
    return claim, " | ".join(claim_sentences(claim, GOAL))


def test_a_claim_names_every_value_in_which_its_sides_differ():
    claim, words = said(confirmed())
    assert claim.verdict == "better"
    assert "units 32, gone 1 -> batch 256, " in words
    assert ", units 64 | " in words
    assert "kind" not in words
    told = headline(confirmed(), claim, GOAL)
    assert "units 32" in told
    assert "units 64" in told


def test_a_gain_is_parted_into_recipe_and_own_values():
    claim, words = said(confirmed(part=0.25))
    whole, part = claim.difference, claim.part.difference
    assert 0 < part < whole
    assert f"+{part:.3g}"[:6] in words
    assert "is due to the recipe (95 % interval" in words
    assert "to your own values" in words
    assert "together are better" in words
    assert "so may the recipe's part" in words
    assert confirmed_table(claim, GOAL).rows[-1][1].endswith("the baseline's own values")


def test_a_recipe_that_gains_nothing_alone_is_told():
    _, words = said(confirmed(part=0.1))
    assert "the recipe alone is within noise" in words


def test_a_gain_that_nobody_parted_is_told():
    claim, words = said(confirmed(part=None))
    assert claim.part is None
    assert "was not trained with the baseline's own values" in words


@pytest.mark.parametrize("best", [{**OWN, "batch_size": 256}, {"kind": "a", "batch_size": 256}])
def test_sides_with_equal_own_values_are_claimed_as_before(best):
    claim, words = said(confirmed(best=best))
    assert claim.part is None
    assert words.endswith(
        "Trial 0's recipe is better than the baseline: the interval is above 0. "
        "This may be claimed."
    )
    assert "units" not in words


def test_a_baseline_that_nobody_chose_bounds_the_claim():
    claim, words = said(confirmed(), lowest={"units": 32})
    assert "against a baseline at its lowest values (units 32)" in words
    assert "own values are the lowest" in headline(confirmed(), claim, GOAL)


def test_a_confirmation_parts_the_gain_of_the_best(tmp_path):
    hypermodel = kbatch.HyperModel(build, SPACE, seconds_per_trial=0.2, values=TODAY)
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=2,
        directory=str(tmp_path),
        seed=3,
    )
    x, y, validation = data()
    tuner.search(x, y, validation_data=validation, verbose=0)
    runs = kbatch.confirm(tuner, top=1, seeds=2)
    assert not [each for each in load_records(tuner) if each.purpose == "parted"]
    runs = kbatch.confirm(tuner, top=1, seeds=3)
    assert len(runs) == 6
    records = load_records(tuner)
    baseline, parted = records[0], [each for each in records if each.purpose == "parted"]
    assert [each.seed for each in parted] == [1, 2, 3]
    best = next(each for each in records if each.purpose == "confirmation" and not each.baseline)
    for each in parted:
        assert own_values(each) == own_values(baseline)
        assert (each.trial, each.recipe) == (best.trial, best.recipe)
    assert kbatch.confirm(tuner, top=1, seeds=3).score.tolist() == runs.score.tolist()
    assert len(load_records(tuner)) == len(records)
    assert kbatch.report(tuner).claim.part.side.seeds == 3
