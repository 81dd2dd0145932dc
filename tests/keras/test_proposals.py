"""Proposals: random at first, then near what was good, and never near what was stopped."""

import keras_tuner
import numpy as np
import optuna
import pytest

from kbatch.search.proposals import BEST_READ, MOST_READ, Observation, Proposer


@pytest.fixture
def space():
    hp = keras_tuner.HyperParameters()
    hp.Float("x", 0.0, 1.0)
    hp.Choice("kind", ["a", "b"])
    with hp.conditional_scope("kind", ["b"]):
        hp.Float("only_b", 0.0, 1.0)
    return hp.space


def test_the_same_seed_and_observations_propose_the_same(space):
    seen = [Observation({"x": 0.1 * n, "kind": "a"}, score=0.1 * n) for n in range(8)]
    assert Proposer().propose(space, seen, 3) == Proposer().propose(space, seen, 3)
    assert len({Proposer().propose(space, seen, seed)["x"] for seed in range(5)}) == 5


def observed(x, kind, good, **more):
    values = {"x": x, "kind": kind} | ({"only_b": 0.5} if kind == "b" else {})
    return Observation(values, score=0.5 if good else 0.1, **more)


def test_proposals_come_near_what_was_good(space):
    random = np.random.default_rng(0)
    seen = [observed(x, "b", good=abs(x - 0.7) < 0.1) for x in random.uniform(0, 1, 40)]
    seen += [observed(x, "a", good=False) for x in random.uniform(0, 1, 20)]
    found = [Proposer().propose(space, seen, seed) for seed in range(40)]
    assert np.mean([each["kind"] == "b" for each in found]) > 0.7
    assert abs(np.median([each["x"] for each in found]) - 0.7) < 0.15
    assert all(("only_b" in each) == (each["kind"] == "b") for each in found)


def test_a_trial_that_was_stopped_ranks_below_all_others(space):
    random = np.random.default_rng(1)
    stopped = [Observation({"x": x, "kind": "a"}, at_rung=0.9) for x in random.uniform(0.5, 1, 20)]
    whole = [observed(x, "a", good=False) for x in random.uniform(0, 0.5, 20)]
    found = [Proposer().propose(space, stopped + whole, seed)["x"] for seed in range(30)]
    assert np.mean(np.array(found) < 0.5) > 0.8


def test_of_thousands_the_best_and_the_latest_are_read(space):
    random = np.random.default_rng(2)
    good = [observed(x, "a", good=True) for x in random.uniform(0.6, 0.7, BEST_READ)]
    poor, other = (
        [observed(x, "a", good=False) for x in random.uniform(0, 1, 1000)] for _ in range(2)
    )
    stopped = [Observation({"x": x, "kind": "b"}, at_rung=0.9) for x in random.uniform(0, 1, 500)]
    latest = [observed(x, "b", good=False) for x in random.uniform(0, 1, MOST_READ)]
    found = [Proposer().propose(space, good + poor + stopped + latest, seed) for seed in range(9)]
    again = [Proposer().propose(space, good + other + stopped + latest, seed) for seed in range(9)]
    assert found == again
    assert abs(np.median([each["x"] for each in found]) - 0.65) < 0.1


def test_optuna_stays_as_talkative_as_it_was(space, capfd):
    before = optuna.logging.get_verbosity()
    Proposer().propose(space, [], 0)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_what_is_kept_of_observations_changes_no_proposal(space):
    kept, seen = Proposer(), []
    for seed in range(30):
        values = kept.propose(space, seen, seed)
        assert values == Proposer().propose(space, seen, seed)
        ended = {"score": values["x"]} if seed % 3 else {"at_rung": values["x"] / 2}
        seen.append(Observation(values, running=True))
        seen[seed // 2] = Observation(seen[seed // 2].values, **ended)
        if seed == 20:
            grown = keras_tuner.HyperParameters()
            grown.Choice("z", [1, 2])
            space = [*space, *grown.space]
