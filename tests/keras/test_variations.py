"""Variations of the start and of the leader, which the oracle proposes."""

import itertools

import keras_tuner
import pytest

from kbatch.runtime import keras_tuner_private
from kbatch.search import proposals
from kbatch.search.oracle import AT_ONCE, REPEAT, Oracle
from kbatch.search.proposals import Load, Observation

SCORE = keras_tuner.Objective("score", "max")
START = {"optimizer": "adam", "rate_adam": 1e-3, "augmentation": "none", "batch_size": 32}


def oracle_in(folder, start=None, seed=1):
    oracle = Oracle(start or START, objective=SCORE, max_trials=60, seed=seed)
    keras_tuner_private.set_project_folder(oracle, str(folder))
    oracle.verbose = 0
    hp = keras_tuner.HyperParameters()
    hp.Choice("optimizer", ["sgd", "adam"])
    for name in ("sgd", "adam"):
        with hp.conditional_scope("optimizer", [name]):
            hp.Float(f"rate_{name}", 1e-4, 1e-1, sampling="log", default=1e-2)
    hp.Choice("augmentation", ["none", "flip", "mixup"])
    hp.Choice("batch_size", [16, 32, 64, 128])
    oracle.update_space(hp)
    return oracle


def ended(oracle, score):
    """The values of a trial that ends with a score."""
    trial = oracle.create_trial("t")
    values = dict(trial.hyperparameters.values)
    oracle.update_trial(trial.trial_id, {"score": score(values)})
    trial.status = "COMPLETED"
    oracle.end_trial(trial)
    return values


def active(oracle, values):
    return proposals.completed(oracle.hyperparameters.space, values)


def is_variation(oracle, values, of):
    return active(oracle, values) in proposals.variations(oracle.hyperparameters.space, of)


def flat(values):
    return 0.1


@pytest.mark.parametrize("seed", range(4))
def test_those_of_the_start_come_first(tmp_path, seed):
    oracle = oracle_in(tmp_path, seed=seed)
    found = [active(oracle, ended(oracle, flat)) for _ in range(5)]
    assert found[0] == START
    variations = proposals.variations(oracle.hyperparameters.space, START)
    at_start = [{**values, "batch_size": START["batch_size"]} for values in found]
    assert sorted(map(str, at_start[1:4])) == sorted(map(str, variations))
    assert found[4] not in variations


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("batch_size", [16, 32, 128])
def test_two_batch_sizes_are_among_the_first_four(batch_size, apart, seed, tmp_path):
    oracle = oracle_in(tmp_path, seed=seed)
    oracle.begin_at({**START, "batch_size": batch_size}, trained_apart=apart)
    found = [ended(oracle, flat) for _ in range(4)]
    sizes = {values["batch_size"] for values in found}
    assert len(sizes) >= 2
    assert batch_size in sizes


def test_a_space_of_one_batch_size_keeps_it(tmp_path):
    oracle = oracle_in(tmp_path)
    axis = next(each for each in oracle.hyperparameters.space if each.name == "batch_size")
    keras_tuner_private.narrow_choice(axis, [32])
    found = [active(oracle, ended(oracle, flat)) for _ in range(6)]
    assert {values["batch_size"] for values in found} == {32}
    assert all(is_variation(oracle, values, START) for values in found[1:3])


def test_no_second_size_is_forced_where_none_may_fit(tmp_path):
    oracle = oracle_in(tmp_path)
    load = Load("model", 1)
    oracle.begin_at(START, False, lambda values: load if values["batch_size"] == 32 else None)
    assert {ended(oracle, flat)["batch_size"] for _ in range(5)} == {32}


def test_seeds_have_their_own_order(tmp_path):
    orders = set()
    for seed in range(6):
        oracle = oracle_in(tmp_path / str(seed), seed=seed)
        orders.add(str([ended(oracle, flat) for _ in range(4)]))
    assert len(orders) > 2


def test_those_of_a_start_that_was_trained_apart_come_first(tmp_path):
    oracle = oracle_in(tmp_path)
    oracle.begin_at(START, trained_apart=True)
    assert all(is_variation(oracle, ended(oracle, flat), START) for _ in range(3))
    assert not is_variation(oracle, ended(oracle, flat), START)


def test_those_of_the_leader_take_turns_with_the_model(tmp_path):
    oracle = oracle_in(tmp_path)

    def score(values):
        return 0.14 if values.get("rate_sgd") == 1e-2 else 0.1

    first = [ended(oracle, score) for _ in range(4)]
    leader = next(active(oracle, values) for values in first if values["optimizer"] == "sgd")
    later = [ended(oracle, score) for _ in range(6)]
    follow = [is_variation(oracle, values, leader) for values in later if REPEAT not in values]
    assert follow == [False, True, False, True, False]


def test_many_of_the_start_leave_turns_to_the_model(tmp_path):
    oracle = oracle_in(tmp_path)
    more = keras_tuner.HyperParameters()
    more.Choice("layer", [f"kind {number}" for number in range(12)])
    oracle.update_space(more)
    start = active(oracle, START)
    found = [ended(oracle, flat) for _ in range(AT_ONCE + 9)]
    found[3]["batch_size"] = START["batch_size"]  # the fourth is at another size too
    follow = [is_variation(oracle, values, start) for values in found if REPEAT not in values]
    assert follow[: AT_ONCE + 1] == [False, *[True] * AT_ONCE]
    later = follow[AT_ONCE + 1 :]
    assert len(later) > 4
    assert not any(one and other for one, other in itertools.pairwise(later))
    assert sum(later) >= len(later) // 2


def test_a_stored_search_proposes_none_again(tmp_path):
    oracle = oracle_in(tmp_path)
    ended(oracle, flat)
    trial = oracle.create_trial("t")
    proposed = active(oracle, trial.hyperparameters.values)
    # a tuner may train other values than were proposed
    trial.hyperparameters.values["batch_size"] = 64
    oracle.update_trial(trial.trial_id, {"score": 0.1})
    trial.status = "COMPLETED"
    oracle.end_trial(trial)
    oracle.save()
    again = oracle_in(tmp_path)
    again.reload()
    found = [active(again, ended(again, flat)) for _ in range(2)]
    assert all(is_variation(again, values, START) for values in found)
    assert proposed not in found


def test_what_does_not_fit_is_none(tmp_path):
    oracle = oracle_in(tmp_path)
    load = Load("model", 1)
    oracle.begin_at(START, False, lambda values: load if values["optimizer"] == "adam" else None)
    found = [ended(oracle, flat) for _ in range(12)]
    assert all(values["optimizer"] == "adam" for values in found)


def test_the_default_is_varied_where_no_start_is_given(tmp_path):
    oracle = oracle_in(tmp_path, start={"batch_size": 64})
    start = {"optimizer": "sgd", "rate_sgd": 1e-2, "augmentation": "none", "batch_size": 64}
    assert active(oracle, ended(oracle, flat)) == start
    assert all(is_variation(oracle, ended(oracle, flat), start) for _ in range(2))
    fourth = {**ended(oracle, flat), "batch_size": 64}
    assert is_variation(oracle, fourth, start)


def test_those_known_from_an_earlier_search_are_left_out(tmp_path):
    oracle = oracle_in(tmp_path)
    known = proposals.variations(oracle.hyperparameters.space, START)[:2]
    oracle.know_earlier([Observation(values, None, 0.1) for values in known])
    found = [active(oracle, ended(oracle, flat)) for _ in range(3)]
    assert is_variation(oracle, found[1], START)
    assert found[1] not in known
    assert not is_variation(oracle, found[2], START)


def test_the_default_recipe_comes_after_another_start(tmp_path):
    default = {**START, "batch_size": 64}
    oracle = oracle_in(tmp_path / "a")
    oracle.begin_at(START, trained_apart=False, default=default)
    assert [active(oracle, ended(oracle, flat)) for _ in range(2)] == [START, default]
    apart = oracle_in(tmp_path / "b")
    apart.begin_at(START, trained_apart=True, default=default)
    assert active(apart, ended(apart, flat)) == default
    same = oracle_in(tmp_path / "c")
    same.begin_at(START, trained_apart=False, default=START)
    assert is_variation(same, [ended(same, flat) for _ in range(2)][1], START)


def test_a_start_that_is_beaten_is_not_varied_on(tmp_path):
    oracle = oracle_in(tmp_path)
    default = {**START, "batch_size": 64}
    oracle.begin_at(START, trained_apart=False, default=default)
    for _ in range(2):
        ended(oracle, lambda values: 0.1 if values["batch_size"] == 32 else 0.4)
    later = [active(oracle, ended(oracle, flat)) for _ in range(3)]
    of_default = [is_variation(oracle, {**values, "batch_size": 64}, default) for values in later]
    assert of_default == [True] * 3


@pytest.mark.parametrize(("known", "varied"), [(0.08, True), (0.9, False)])
def test_a_trial_below_the_baseline_is_not_varied(tmp_path, known, varied):
    oracle = oracle_in(tmp_path)
    oracle.begin_at(START, trained_apart=True)
    oracle.know_start(None, known)
    for _ in range(12):
        ended(oracle, flat)
    assert (len(oracle._varied) > 3) == varied


def test_a_trial_that_learned_nothing_is_not_varied(tmp_path):
    oracle = oracle_in(tmp_path)
    for _ in range(12):
        ended(oracle, lambda values: 0.0)
    assert len(oracle._varied) == 3


def test_what_a_narrowed_space_cannot_draw_is_none(tmp_path):
    oracle = oracle_in(tmp_path)
    oracle.begin_at({**START, "batch_size": 48}, trained_apart=True)  # of no value of the axis
    assert all(ended(oracle, flat)["batch_size"] != 48 for _ in range(6))
