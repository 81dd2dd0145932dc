"""The axis `recompute`: models are planned by it, searches draw it, tables and records have it."""

from pathlib import Path

import keras
import keras_tuner
import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import HyperModel, Recipe, Space, recompute
from kbatch.errors import RecomputeError
from kbatch.memory import _micro_batch
from kbatch.memory._max_batch import Table
from kbatch.models.maker import ModelMaker
from kbatch.recipe_words import Strategy
from kbatch.recompute._planner import PLANNED_BATCH_SIZE, apply_recipe
from kbatch.results.loading import load_records
from kbatch.space import Combination

HERE = Path(__file__).parents[1] / "support"


pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers")


@pytest.mark.parametrize(
    "text", ["none", "minimal", "sqrt", "stages", "blocks", "segments:4", "budget:0.5"]
)
def test_a_strategy_is_read(text):
    assert Strategy.parse(text).name == text.partition(":")[0]
    assert Recipe(recompute=text).recompute == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Minimal",
        "budget",
        "budget:",
        "budget:1",
        "budget:0",
        "budget:-1",
        "budget:nan",
        "minimal:0.5",
        "segments",
        "segments:1",
        "segments:2.0",
        "segments:+4",
        "segments:99999",
        "none:",
        None,
        3,
    ],
)
def test_nonsense_is_no_strategy(text):
    assert Strategy.parse(text) is None
    with pytest.raises(kbatch.errors.RecipeError, match="`recompute` must be none, minimal"):
        Recipe(recompute=text)
    with pytest.raises(kbatch.errors.SpaceError, match="`recompute` must be among"):
        Space(recompute=text)
    with pytest.raises(RecomputeError, match="`recompute` must be"):
        apply_recipe(memory_models.normed(), text)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_made_model_has_the_plan_of_its_recipe(policy):
    model_maker = ModelMaker(memory_models.normed)
    made = model_maker.make(
        Recipe(optimizer="sgd", learning_rate=0.1, policy=policy, recompute="minimal")
    )
    assert recompute.applied(made) == recompute.plan(made, PLANNED_BATCH_SIZE)
    assert (
        recompute.applied(
            model_maker.make(Recipe(optimizer="sgd", learning_rate=0.1, policy=policy))
        )
        is None
    )


def test_cuts_ignore_the_batch_size_and_bytes_are_per_pass():
    model_maker = ModelMaker(memory_models.normed)
    recipes = [
        Recipe(1, recompute="budget:0.6"),
        Recipe(256, recompute="budget:0.6"),
        Recipe(256, recompute="budget:0.6", micro_batch_size=64),
    ]
    plans = [recompute.applied(model_maker.make(recipe)) for recipe in recipes]
    assert all(list(plan.stretches()) == list(plans[0].stretches()) for plan in plans)
    assert [plan.batch_size for plan in plans] == [1, 256, 64]
    for plan in plans:
        assert (
            plan.kept_bytes
            <= 0.6
            * recompute.plan(memory_models.normed(), plan.batch_size, "none").kept_bytes
            * 1.01
        )


def test_a_model_that_hides_its_graph_is_refused_in_words():
    class Hidden(keras.Model):
        def call(self, inputs):
            return inputs

    def build():
        model = Hidden()
        model.compile("sgd", "mse")
        return model

    with pytest.raises(RecomputeError, match="A model must be Functional or Sequential"):
        ModelMaker(build).make(Recipe(recompute="minimal"))


def tuner_over(strategies, folder):
    """A grid over recompute strategies only, of which the first trial takes the first."""

    def build():
        model = memory_models.normed()
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    space = Space(
        optimizer="sgd", policy="float32", batch_size=16, recompute=strategies, warmup_passes=0.0
    )
    hypermodel = HyperModel(build, space, seconds_per_trial=0.5)
    return keras_tuner.GridSearch(
        hypermodel, objective=kbatch.objective(), max_trials=1, directory=folder, project_name="p"
    )


def test_a_search_draws_it_and_the_records_tell_plan_and_seconds(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 24, 24, 3)).astype("float32"), rng.integers(0, 10, 64)

    tuner = tuner_over(("minimal", "none"), tmp_path)  # the baseline's is none
    tuner.search(x, y, validation_data=(x, y), verbose=0)
    trials = kbatch.results.load(tmp_path / "p")
    assert list(trials["recompute"]) == ["none", "minimal"]
    drawn_from = {axis.name: axis for axis in tuner.oracle.get_space().space}
    assert drawn_from["recompute"].values == ["minimal", "none"]
    assert list(trials["recompute_seconds"] > 0) == [False, True]
    assert trials["recompute_seconds"].max() < trials["train_seconds"].max()
    assert "recompute minimal" in trials["recipe"].iloc[-1]
    plans = [record.outcome.plan for record in load_records(tmp_path / "p")]
    assert plans[0] == ""
    again = memory_models.normed()
    recompute.apply(again, recompute.Plan.from_json(plans[1]))
    assert list(recompute.applied(again).stretches()) == list(
        recompute.plan(again, PLANNED_BATCH_SIZE).stretches()
    )


def test_an_impossible_plan_ends_a_search_before_training(tmp_path):
    x, y = np.zeros((32, 24, 24, 3), "float32"), np.arange(32) % 10

    tuner = tuner_over(("none", "budget:0.01"), tmp_path)
    with pytest.raises(
        RecomputeError, match=r"meet the budget.*kept_share=0\.01.*Raise the budget"
    ):
        tuner.search(x, y, validation_data=(x, y), verbose=0)
    assert not (tmp_path / "p" / "kbatch" / "records.jsonl").exists()


@pytest.mark.slow
def test_the_table_has_its_rows_and_the_larger_batch_is_used():
    space = Space(optimizer="sgd", policy="float32", recompute=("none", "minimal"))
    table = kbatch.max_batches(memory_models.deep, (32, 32, 3), space=space, memory_limit=200 << 20)
    plain, small = (
        table.row(Combination("float32", "sgd", False)),
        table.row(Combination("float32", "sgd", False, "minimal")),
    )
    assert small.batch_size > 1.5 * plain.batch_size
    # the first row is searched, the second confirmed, and once more if it left memory unused
    assert table.executed_probes <= 10
    assert Table.from_dict(table.to_dict()) == table
    drawn = Recipe(small.batch_size, "sgd", 0.1, recompute="minimal")
    assert _micro_batch.fitted(drawn, table) == drawn
    without = Recipe(small.batch_size, "sgd", 0.1)
    assert _micro_batch.fitted(without, table) != without
