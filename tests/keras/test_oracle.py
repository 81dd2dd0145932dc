"""kbatch's oracle as KerasTuner uses it: what it proposes, stops, stores and ranks."""

import keras_tuner
import pytest
from keras_tuner.engine.trial import Trial

from kbatch.runtime import keras_tuner_private
from kbatch.search.oracle import REPEAT, REPEATED_FROM, Oracle
from kbatch.search.proposals import Load, Observation, Proposer

SCORE = keras_tuner.Objective("score", "max")


def oracle_in(folder, start=None, seed=1, max_trials=50):
    oracle = Oracle(start, objective=SCORE, max_trials=max_trials, seed=seed)
    keras_tuner_private.set_project_folder(oracle, str(folder))
    oracle.verbose = 0
    hp = keras_tuner.HyperParameters()
    hp.Choice("batch_size", [16, 32, 64, 128])
    hp.Float("rate", 1e-3, 1e-1, sampling="log", default=1e-2)
    oracle.update_space(hp)
    return oracle


def drawn(trial):
    """The values of a trial without the mark of a repeat."""
    values = trial.hyperparameters.values
    return {name: value for name, value in values.items() if name != REPEAT}


def score_of(values):
    return values["batch_size"] / 128 - abs(values["rate"] - 0.02)


def end(oracle, trial, score=None):
    if score is not None:
        oracle.update_trial(trial.trial_id, {"score": score})
    trial.status = "STOPPED" if score is None else "COMPLETED"
    oracle.end_trial(trial)


def searched(oracle, trials):
    found = []
    for number in range(trials):
        trial = oracle.create_trial("t")
        found.append(trial.hyperparameters.values)
        end(oracle, trial, None if number % 3 == 2 else score_of(found[-1]))
    return found


def test_the_start_comes_first(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 32})
    found = searched(oracle, 3)
    assert found[0] == {"batch_size": 32, "rate": 1e-2}
    assert found[0] not in found[1:]


def test_what_was_the_best_elsewhere_comes_after_the_default(tmp_path):
    oracle = oracle_in(tmp_path)
    oracle.begin_at({"batch_size": 32}, False, default={"batch_size": 64})
    elsewhere = [{"batch_size": 128}, {"batch_size": 32}, {"rate": 5.0}, {"rate": 0.05}]
    oracle.learn(elsewhere)
    found = searched(oracle, 5)
    assert found[:4] == [
        {"batch_size": 32, "rate": 1e-2},
        {"batch_size": 64, "rate": 1e-2},
        {"batch_size": 128, "rate": 1e-2},
        {"batch_size": 32, "rate": 0.05},
    ]
    assert found[4] not in found[:4]


def test_what_was_learned_is_proposed_once_though_trials_change(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 32})
    oracle.learn([{"batch_size": 128}, {"batch_size": 64}])
    found = []
    for _ in range(4):
        trial = oracle.create_trial("t")
        found.append(dict(trial.hyperparameters.values))
        trial.hyperparameters.values["rate"] = 0.05 + 0.001 * len(found)  # as a replay does
        end(oracle, trial, score_of(trial.hyperparameters.values))
    assert [each["batch_size"] for each in found[:3]] == [32, 128, 64]
    assert found[3] not in found[:3]


def test_only_leaders_are_proposed_twice_and_the_space_ends(tmp_path):
    oracle = Oracle(objective=SCORE, max_trials=100, seed=1)
    keras_tuner_private.set_project_folder(oracle, str(tmp_path))
    oracle.verbose = 0
    hp = keras_tuner.HyperParameters()
    hp.Choice("batch_size", [16, 32, 64])
    hp.Boolean("jit")
    oracle.update_space(hp)
    found = []
    while (trial := oracle.create_trial("t")).status == "RUNNING":
        found.append(tuple(drawn(trial).values()))
        end(oracle, trial, 0.1)
    assert len(set(found)) == 6
    # of equal recipes the first leads
    assert found == [*list(dict.fromkeys(found))[:5], found[0], found[-1]]


def test_a_stored_search_goes_on_as_if_it_had_not_stopped(tmp_path):
    whole = oracle_in(tmp_path / "whole")
    expected = searched(whole, 12)
    first = oracle_in(tmp_path / "parts")
    begun = searched(first, 6)
    trial = first.create_trial("t")
    first.goes_on(trial.trial_id, 0.1)
    first.save()
    again = oracle_in(tmp_path / "parts")
    again.reload()
    assert again.create_trial("t").hyperparameters.values == trial.hyperparameters.values
    assert begun == expected[:6]
    assert trial.hyperparameters.values == expected[6]


def test_trials_are_read_again_as_keras_tuner_reads_them(tmp_path):
    searched(oracle_in(tmp_path), 4)
    again = oracle_in(tmp_path)
    again.reload()
    for name, trial in again.trials.items():
        [file] = tmp_path.rglob(f"trial_{name}/trial.json")
        own = Trial.load(str(file))
        assert trial.get_state() == own.get_state()
    axes = [axis for trial in again.trials.values() for axis in trial.hyperparameters.space]
    assert len({id(axis) for axis in axes}) == len(axes) == 8


def test_what_is_kept_of_trials_changes_no_proposal(tmp_path):
    kept = oracle_in(tmp_path / "kept")
    for _ in range(20):
        searched(kept, 1)
        anew = oracle_in(tmp_path / "kept")
        anew.reload()
        assert anew.populate_space("next") == kept.populate_space("next")


def test_the_rung_stops_all_but_the_best_and_never_the_start(tmp_path):
    oracle = oracle_in(tmp_path)
    start = oracle.create_trial("t")
    assert oracle.goes_on(start.trial_id, 0.0)
    end(oracle, start, 0.0)
    better = oracle.create_trial("t")
    assert oracle.goes_on(better.trial_id, 0.4)
    end(oracle, better, 0.5)
    for _ in range(2):
        early = oracle.create_trial("t")
        assert oracle.goes_on(early.trial_id, 0.1)  # the first four go on
        end(oracle, early, 0.1)
    worse = oracle.create_trial("t")
    assert not oracle.goes_on(worse.trial_id, 0.05)
    end(oracle, worse)
    assert worse.trial_id not in {each.trial_id for each in oracle.get_best_trials(9)}
    again = oracle.create_trial("t")
    assert oracle.goes_on(again.trial_id, 0.3)  # the second of six
    end(oracle, again)
    last = oracle.create_trial("t")
    assert not oracle.goes_on(last.trial_id, 0.05)


def ended_with(oracle, scores):
    """Trials that end with these scores; `None` for one that is stopped."""
    trials = []
    for score in scores:
        trials.append(oracle.create_trial("t"))
        end(oracle, trials[-1], score)
    return trials


def test_a_leader_is_trained_again_and_its_mean_counts(tmp_path):
    oracle = oracle_in(tmp_path)
    first = ended_with(oracle, [0.1, 0.2, None, 0.9, 0.3, 0.6])
    assert not any(REPEAT in each.hyperparameters.values for each in first)
    again = oracle.create_trial("t")
    assert again.hyperparameters.values == {
        **first[3].hyperparameters.values,
        REPEAT: first[3].trial_id,
    }
    assert oracle.goes_on(again.trial_id, -1.0)  # whatever it gains
    other = oracle.create_trial("u")  # while it still runs, beside it
    assert REPEAT not in other.hyperparameters.values
    end(oracle, other)
    end(oracle, again, 0.1)
    best = [each.trial_id for each in oracle.get_best_trials(9)]
    assert best == [first[number].trial_id for number in (5, 3, 4, 1, 0)]
    # the mean of 0.9 and 0.1 is below 0.6, which leads by one training now
    last = oracle.create_trial("t")
    assert last.hyperparameters.values[REPEAT] == first[5].trial_id
    end(oracle, last, 0.5)
    assert REPEAT not in oracle.create_trial("t").hyperparameters.values


def test_a_stored_search_still_knows_its_repeats(tmp_path):
    oracle = oracle_in(tmp_path)
    ended_with(oracle, [0.1, 0.2, 0.9, 0.3, 0.4, 0.8])
    oracle.save()
    again = oracle_in(tmp_path)
    again.reload()
    assert [each.score for each in again.get_best_trials(9)] == [0.9, 0.4, 0.3, 0.2, 0.1]
    assert REPEAT not in again.create_trial("t").hyperparameters.values


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_is_repeated_once_where_the_space_grows(tmp_path, seed):
    oracle = oracle_in(tmp_path, seed=seed)
    drawn_values = []
    for number in range(14):
        trial = oracle.create_trial("t")
        hp = trial.hyperparameters
        for layer in range(hp.Int("layers", 1, 4)):
            hp.Float(f"dropout_{layer}", 0.0, 0.5)
        oracle.update_space(hp)
        drawn_values.append(hp.values)
        end(oracle, trial, 0.9 if number == 3 else 0.1)
    repeated = [values[REPEAT] for values in drawn_values if REPEAT in values]
    assert repeated[0] == oracle.start_order[3]
    assert len(repeated) == len(set(repeated))
    # with one good training of two it leads on, and is never repeated again
    assert oracle.get_best_trials(1)[0].trial_id == repeated[0]
    assert not any(REPEAT in trial.hyperparameters.values for trial in oracle.get_best_trials(99))


def test_trials_that_failed_do_not_make_a_leader(tmp_path):
    oracle = oracle_in(tmp_path)
    ended_with(oracle, [0.5])
    for _ in range(2 * REPEATED_FROM):
        trial = oracle.create_trial("t")
        assert REPEAT not in trial.hyperparameters.values
        oracle.keep(trial.trial_id, None, "nan")
        end(oracle, trial, 0.0)


@pytest.mark.parametrize("scores", [[0.1] * (REPEATED_FROM - 1), [0.0] * 8, [0.2, *[None] * 8]])
def test_nothing_is_repeated_before_there_is_a_leader(tmp_path, scores):
    oracle = oracle_in(tmp_path)
    ended_with(oracle, scores)
    assert REPEAT not in oracle.create_trial("t").hyperparameters.values


def test_a_trial_that_is_asked_again_at_a_rung_counts_once(tmp_path):
    oracle = oracle_in(tmp_path)
    end(oracle, oracle.create_trial("t"), 0.1)
    trial = oracle.create_trial("t")
    for value in (0.1, 0.2):  # a process was killed in between
        assert oracle.goes_on(trial.trial_id, value)
    assert oracle.get_state()["gained"] == {trial.trial_id: 0.2}


def test_of_two_rungs_a_project_of_before_keeps_the_later(tmp_path):
    oracle = oracle_in(tmp_path)
    end(oracle, oracle.create_trial("t"), 0.1)
    state = oracle.get_state()
    del state["gained"]
    oracle.set_state({**state, "rungs": {"0000": [0.1, 0.2], "0001": [0.05], "0002": []}})
    assert oracle.get_state()["gained"] == {"0000": 0.2}


def test_the_best_trials_are_those_of_the_best_estimates(tmp_path):
    oracle = oracle_in(tmp_path)
    assert oracle.get_best_trials(1) == []
    searched(oracle, 15)
    best = oracle.get_best_trials(3)
    assert all(each.score is not None for each in best)
    assert best[0].hyperparameters.get("batch_size") == 128
    with pytest.raises(IndexError):
        best[3]


def test_a_start_that_was_trained_apart_is_known_and_no_trial(tmp_path):
    oracle = oracle_in(tmp_path)
    oracle.begin_at({"batch_size": 32, "rate": 1e-2}, trained_apart=True)
    trial = oracle.create_trial("t")
    start = {"batch_size": 32, "rate": 1e-2}
    assert trial.hyperparameters.values != start
    oracle.know_start(0.3, 0.4)
    assert oracle.standing(trial.trial_id).others == (0.3,)
    oracle.keep(trial.trial_id, 0.1, "stopped")
    trial.status = "COMPLETED"
    oracle.end_trial(trial)
    assert trial.status == "STOPPED"
    assert oracle.get_best_trials(1) == []
    tried = [dict(values) for values in searched(oracle, 12)]
    assert start not in tried


def test_a_search_ends_at_its_limits(tmp_path):
    oracle = oracle_in(tmp_path)
    oracle.most_trials = 2
    searched(oracle, 2)
    assert oracle.create_trial("t").status == "STOPPED"
    oracle.most_trials, oracle.ends_at = None, 0.0
    assert oracle.create_trial("t").status == "STOPPED"


def load_of(values):
    return Load("model", values["batch_size"])


def batch_sizes(oracle, trials, limit=128):
    """The batch sizes of so many trials, of which those above a limit run out of memory."""
    found = []
    for _ in range(trials):
        trial = oracle.create_trial("t")
        if trial.status == "STOPPED":
            break
        values = trial.hyperparameters.values
        found.append(values["batch_size"])
        if values["batch_size"] > limit:
            oracle.keep(trial.trial_id, None, "out_of_memory")
        end(oracle, trial, 0.0 if values["batch_size"] > limit else score_of(values))
    return found


def test_what_is_known_not_to_fit_is_never_proposed(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 16})
    known = {16: Load("model", 16), 32: Load("model", 32)}
    oracle.begin_at({"batch_size": 16}, False, lambda values: known.get(values["batch_size"]))
    assert set(batch_sizes(oracle, 30)) == {16, 32}


def test_nothing_above_what_ran_out_of_memory_is_proposed(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 16})
    oracle.begin_at({"batch_size": 16}, False, load_of)
    found = batch_sizes(oracle, 30, limit=32)
    assert sum(size > 32 for size in found) <= 2  # 128 and then 64, at most
    oracle.save()
    again = oracle_in(tmp_path, {"batch_size": 16}, max_trials=80)
    again.reload()
    again.begin_at({"batch_size": 16}, False, load_of)
    assert set(batch_sizes(again, 10, limit=32)) <= {16, 32}


def test_another_kind_of_load_tells_nothing(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 16})
    oracle.begin_at({"batch_size": 16}, False, lambda values: Load(values["rate"], 1))
    assert sum(size > 32 for size in batch_sizes(oracle, 9, limit=32)) >= 3


def test_the_estimator_keeps_away_from_what_ran_out_of_memory():
    hp = keras_tuner.HyperParameters()
    hp.Float("rate", 0.0, 1.0)
    seen = [Observation({"rate": place / 40}, None, 0.5, False, place >= 20) for place in range(40)]
    rates = [Proposer().propose(hp.space, seen, seed)["rate"] for seed in range(40)]
    assert sum(rate < 0.5 for rate in rates) > 30


def test_a_space_that_does_not_fit_ends_the_search(tmp_path):
    oracle = oracle_in(tmp_path, {"batch_size": 16})
    oracle.begin_at({"batch_size": 16}, False, lambda values: None)
    assert batch_sizes(oracle, 5) == [16]  # the start is trained as it is
