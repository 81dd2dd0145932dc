"""Replay: recorded trainings given to tuners, and what is lost by what they recommend."""

import dataclasses
import gzip
import json
from collections import Counter

import keras_tuner
import numpy as np
import pytest
from recorded_trainings import HORIZON, trainings

import kbatch
from kbatch.errors import RecordError, SearchError
from kbatch.outcome import marks
from kbatch.testing import Replay


@pytest.fixture(scope="module")
def replay():
    return Replay(trainings())


def test_the_regret_is_the_share_of_the_best_mean_score(replay):
    means = {}
    for each in replay.trainings:
        score = kbatch.score(each.curve, each.horizon, each.chance)
        means.setdefault(each.recipe, []).append(score)
    best = max(np.mean(scores) for scores in means.values())
    for recipe, scores in means.items():
        assert replay.regret(recipe) == pytest.approx(1 - np.mean(scores) / best)
    assert min(map(replay.regret, replay.recipes)) == 0


@pytest.mark.parametrize("policy", ["random", "bayesian", "kbatch"])
def test_the_same_seed_gives_the_same_search_and_others_differ(replay, policy):
    once, again = (replay.trials(policy, 5, seed=2) for _ in range(2))
    assert once == again
    assert replay.run(policy, 5, seed=2) == once[-1].recommended
    other = replay.trials(policy, 5, seed=3)
    assert [each.recipe for each in other] != [each.recipe for each in once]


@pytest.mark.parametrize("policy", ["random", "bayesian", "kbatch"])
def test_a_search_stays_within_its_horizons(replay, policy):
    for horizons in (1, 7):
        found = replay.trials(policy, horizons)
        assert sum(each.seconds for each in found) <= horizons * HORIZON * 1.02
        times = Counter(each.recipe for each in found)
        assert max(times.values()) == (2 if policy == "kbatch" and horizons == 7 else 1)
    stopped = [each for each in found if each.seconds < 0.9 * HORIZON]
    assert bool(stopped) == (policy == "kbatch")
    assert len(found) == 7 or policy == "kbatch"


def test_a_repeat_is_answered_with_another_seed(replay):
    found = replay.trials("kbatch", 9)
    times = Counter(each.recipe for each in found)
    repeated = [recipe for recipe, count in times.items() if count == 2]
    assert repeated
    for recipe in repeated:
        gains = [each.gain for each in found if each.recipe == recipe]
        assert gains[0] != gains[1]


def test_any_function_that_makes_an_oracle_is_a_policy(replay):
    oracle = keras_tuner.oracles.RandomSearchOracle
    assert replay.trials(oracle, 4) == replay.trials("random", 4)
    grid = replay.trials(lambda **own: keras_tuner.oracles.GridSearchOracle(**own), 4)
    assert len(grid) == 4
    with pytest.raises(SearchError, match="kbatch, random, bayesian"):
        replay.run("grid")
    with pytest.raises(SearchError, match="one trial at least"):
        replay.run("random", horizons=0.5)


def test_a_table_travels_through_a_file(replay, tmp_path):
    for name in ("table.jsonl", "table.jsonl.gz"):
        replay.save(tmp_path / name)
        assert Replay.load(tmp_path / name).trainings == replay.trainings
    assert (tmp_path / "table.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    line = json.loads((tmp_path / "table.jsonl").read_text().splitlines()[0])
    fields = {"recipe", "seed", "horizon", "chance", "curve", "peak_bytes", "validation_examples"}
    assert line.keys() == fields


def lines(*changes):
    own = {"recipe": {"batch_size": 32}, "seed": 0, "horizon": 20.0, "chance": 0.5}
    own["curve"] = [[mark, 0.6] for mark in marks(20.0)]
    return "\n".join(json.dumps({**own, **change}) for change in changes)


def test_lines_need_few_fields(tmp_path):
    text = lines({}, {"seed": 1}, {"recipe": {"batch_size": 64}, "curve": []})
    (tmp_path / "t.jsonl").write_text(text)
    small = Replay.load(tmp_path / "t.jsonl")
    assert [recipe.batch_size for recipe in small.recipes] == [32, 64]
    assert small.mean(small.recipes[0]) == pytest.approx(0.1)
    assert small.regret(small.recipes[1]) == 1
    for policy in ("random", "bayesian", "kbatch"):
        assert small.run(policy, 3).batch_size == 32


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", RecordError, "at least one training"),
        (b"{}", RecordError, "line 1: no recipe"),
        (b"nonsense", RecordError, "line 1"),
        (gzip.compress(b"[1]", mtime=0), RecordError, "line 1: no recipe"),
        (gzip.compress(b"{}" * 50, mtime=0)[:-9], RecordError, "readable"),
        (lines({"curve": [["a", 1]]}).encode(), RecordError, "line 1"),
        (lines({"seed": "one"}).encode(), RecordError, "line 1"),
        (lines({"curve": []}).encode(), SearchError, "1 recipes at chance"),
        (lines({}, {"horizon": 10.0}).encode(), SearchError, "10 s, 20 s"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content, error, words):
    path = tmp_path / "table.jsonl"
    path.write_bytes(content)
    with pytest.raises(error, match=words):
        Replay.load(path)
    with pytest.raises(RecordError, match="No such file"):
        Replay.load(tmp_path / "other.jsonl")


def test_noise_moves_trainings_towards_the_mean_of_their_recipe(replay):
    quarter = Replay(replay.trainings, noise=0.25)
    for each in replay.trainings[:9]:
        gains = [other.gain(HORIZON) for other in replay.trainings if other.recipe == each.recipe]
        assert replay.gain(each, HORIZON) == pytest.approx(each.gain(HORIZON))
        left = quarter.gain(each, HORIZON) - np.mean(gains)
        assert left == pytest.approx(0.25 * (each.gain(HORIZON) - np.mean(gains)))
        above = quarter.held(each) - quarter.mean(each.recipe)
        assert above == pytest.approx(0.25 * (each.held(HORIZON) - replay.mean(each.recipe)))
        assert quarter.mean(each.recipe) == replay.mean(each.recipe)


def test_a_stopped_training_ends_with_its_next_measurement(replay):
    training = replay.trainings[0]
    third = training.curve[6][0]
    assert training.seconds(marks(HORIZON)[6]) == third
    values = [value for _, value in training.curve[:7]]
    assert training.held(marks(HORIZON)[6]) == pytest.approx(
        kbatch.score(training.curve[:7], 1.0, 0.5)
    )
    means = np.convolve(values, np.ones(3) / 3, "valid")
    assert training.gain(marks(HORIZON)[6]) == pytest.approx(max(means) - 0.5)
    assert training.seconds(10 * HORIZON) == training.curve[-1][0]


def test_the_search_of_kbatch_loses_less_than_random_search():
    lost = {"random": [], "kbatch": []}
    for seed in range(3):
        replay = Replay(trainings(seed=seed))
        for policy, regrets in lost.items():
            regrets += [replay.regret(replay.run(policy, 10, seed=each)) for each in range(6)]
    assert np.median(lost["kbatch"]) < np.median(lost["random"])


def test_what_is_clearly_worse_is_stopped_among_the_first(replay):
    known = [dataclasses.replace(each, validation_examples=10**6) for each in replay.trainings]
    whole, stopped = (of.trials("kbatch", 4)[:4] for of in (replay, Replay(known)))
    assert min(each.seconds for each in whole) > 0.9 * replay.horizon
    assert min(each.seconds for each in stopped) < 0.5 * replay.horizon


def test_a_project_that_was_confirmed_becomes_a_table(confirmed, points, tmp_path):
    table = Replay.of_project(confirmed / "p")
    assert len(table.recipes) == 3
    assert len(table.trainings) == 6
    assert {each.validation_examples for each in table.trainings} == {len(points[1][0])}
    records = kbatch.results.load(confirmed / "p")
    for record, score in zip(records.trial, records.score, strict=True):
        assert any(
            each.held(table.horizon) / table.horizon == pytest.approx(score)
            for each in table.trainings
        ), record
    with pytest.raises(RecordError, match="no search"):
        Replay.of_project(tmp_path)
