"""Races of a confirmation: who goes on, when it ends, and that few of its claims are false."""

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from result_records import GOAL, confirmation, keep, record

import kbatch
from kbatch.errors import SearchError
from kbatch.records import project
from kbatch.records.project import Project
from kbatch.records.store import Store
from kbatch.results.claim import Race, claim_of
from kbatch.results.interval import interval
from kbatch.results.ranking import best_of
from kbatch.results.sentences import claim_sentences
from kbatch.runtime.signals import Turns
from kbatch.training import confirmation as training_confirmation
from kbatch.training.progress import Watcher
from kbatch.training.workers import IsolatedTrainer

LOOKS = (3, 5, 8, 12)
NEVER = math.inf


def searched(folder, level_of):
    """A search whose trainings give a level of `level_of(trial, seed)`, and what was trained."""
    project, made = Project(folder / "p"), []
    project.agree({"goal": GOAL.to_dict(), "data": {"validation": {"examples": 10_000}}})

    def again(first, seed, test=None):
        one = record(first.trial, level_of(first.trial, seed), "confirmation", seed)
        made.append((first.trial, seed))
        project.store.start(one.key)
        project.store.end(one)
        return one

    search = SimpleNamespace(
        project=project,
        goal=GOAL,
        model_maker=SimpleNamespace(seed=0),
        baseline=lambda: record(-1, 0.2, "baseline"),
        again=again,
        trainer=None,
        watcher=Watcher(),
    )
    return search, made


def race_of(search):
    return Race.of(search.project.facts())


def candidates(count):
    return [record(trial, 0.3) for trial in range(count)]


def seeds_of(made):
    return {trial: sum(each == trial for each, _ in made) for trial, _ in made}


def wobbling(trial, seed):
    """Levels that no seeds tell apart; trial 0 seems the best, 3 the worst."""
    return 0.2 + 0.1 * math.sin(7 * seed + trial) - 0.02 * trial


def test_the_better_half_goes_on_to_the_last_look(tmp_path):
    search, made = searched(tmp_path, wobbling)
    records = training_confirmation.run_race(search, candidates(4), LOOKS, NEVER, None)
    counts = seeds_of(made)
    assert sorted(counts.values()) == [3, 3, 5, 12, 12]
    assert counts[-1] == 12
    assert len(records) == len(made) == sum(counts.values())
    assert made[:5] == [(trial, 1) for trial in (-1, 0, 1, 2, 3)]  # seed by seed


def test_of_equal_recipes_half_go_on_too_the_leaders(tmp_path):
    search, made = searched(tmp_path, lambda trial, seed: 0.2)
    training_confirmation.run_race(search, candidates(3), LOOKS, NEVER, None)
    assert seeds_of(made) == {-1: 12, 0: 12, 1: 5, 2: 3}


def test_it_ends_once_the_best_is_told_from_the_baseline(tmp_path):
    search, made = searched(tmp_path, lambda trial, seed: 0.2 + 0.15 * (trial == 1))
    training_confirmation.run_race(search, candidates(3), LOOKS, NEVER, None)
    assert seeds_of(made) == dict.fromkeys((-1, 0, 1, 2), 3)
    search, made = searched(tmp_path / "b", lambda trial, seed: 0.35 - 0.15 * (trial >= 0))
    training_confirmation.run_race(search, candidates(3), LOOKS, NEVER, None)
    assert seeds_of(made)[-1] == 3  # none is better than the baseline


def in_workers(search, count):
    """Let so many threads train, each while the others wait for a training."""
    trainer = object.__new__(IsolatedTrainer)  # without processes
    trainer.workers, trainer.turns = count, Turns()
    alone = search.again

    def again(first, seed, test=None):
        with trainer.turns.given():
            time.sleep(0.002 * (1 + (7 * seed + first.trial) % 3))
        return alone(first, seed, test)

    search.trainer, search.again = trainer, again


def test_several_workers_train_what_one_does(tmp_path):
    search, made = searched(tmp_path, wobbling)
    records = training_confirmation.run_race(search, candidates(4), LOOKS, NEVER, None)
    several, made_by_three = searched(tmp_path / "b", wobbling)
    in_workers(several, 3)
    again = training_confirmation.run_race(several, candidates(4), LOOKS, NEVER, None)
    assert sorted(made_by_three) == sorted(made)
    assert [each.score for each in again] == [each.score for each in records]
    assert race_of(several) == race_of(search)


def test_an_error_in_a_worker_loses_nothing(tmp_path):
    def level(trial, seed):
        if (trial, seed) == (1, 3):
            raise ZeroDivisionError
        return wobbling(trial, seed)

    search, made = searched(tmp_path, level)
    in_workers(search, 3)
    with pytest.raises(ZeroDivisionError):
        training_confirmation.run_race(search, candidates(4), LOOKS, NEVER, None)
    assert len(set(made)) == len(made) >= 10
    assert len(search.project.store.records()) == len(made)
    assert max(race_of(search).looks) <= 12
    assert not [each for each in threading.enumerate() if each.name.startswith("kbatch-")]


def test_a_budget_may_end_while_several_train(tmp_path):
    search, made = searched(tmp_path, wobbling)
    in_workers(search, 3)
    records = training_confirmation.run_race(
        search, candidates(4), LOOKS, time.monotonic() + 0.02, None
    )
    assert len(records) == len(made) == len(set(made)) < 45
    assert [(each.trial, each.seed) for each in records] == sorted(
        made, key=lambda each: (each[1], each[0])
    )


def test_a_seed_that_the_baseline_has_not_had_counts_for_nothing(tmp_path):
    trials = [record(trial, 0.3 - trial / 10, batch_size=64 * 2**trial) for trial in (0, 1)]
    stopped = [*confirmation({1: 0.35}, 1)]
    records = [record(-1, 0.4, "baseline"), *trials, *stopped]
    assert claim_of(records, GOAL, 400) is None
    assert best_of(records).trial == 0
    with pytest.warns(UserWarning, match="The baseline did better"):
        kbatch.best_recipe(keep(tmp_path, records))


def test_who_dropped_out_is_kept_and_may_come_back(tmp_path):
    search, made = searched(tmp_path, wobbling)
    training_confirmation.run_race(search, candidates(4), LOOKS, NEVER, None)
    counts = seeds_of(made)
    out = race_of(search).dropped
    assert {trial for trial, count in counts.items() if count < 12} == set(out)
    training_confirmation.run_race(search, [record(out[0], 0.3)], (3,), NEVER, None)
    assert out[0] not in race_of(search).dropped
    assert race_of(search).looks == LOOKS


def test_an_older_claim_ends_no_race_of_others(tmp_path):
    search, made = searched(tmp_path, lambda trial, seed: wobbling(trial, seed) + (trial == 0))
    training_confirmation.run_race(search, candidates(1), (5,), NEVER, None)
    made.clear()
    training_confirmation.run_race(search, candidates(3)[1:], LOOKS, NEVER, None)
    assert max(seeds_of(made).values()) == 12


def test_whoever_stops_a_race_has_looked_at_it(tmp_path):
    search, made = searched(tmp_path, wobbling)
    again = search.again

    def stopped(*args):
        if len(made) == 4 * 3:
            raise KeyboardInterrupt
        return again(*args)

    search.again = stopped
    with pytest.raises(KeyboardInterrupt):
        training_confirmation.run_race(search, candidates(2), (12,), NEVER, None)
    assert race_of(search).looks == (4, 12)


def test_one_number_of_seeds_is_no_race(tmp_path):
    search, made = searched(tmp_path, wobbling)
    training_confirmation.run_race(search, candidates(3), (4,), NEVER, None)
    assert set(seeds_of(made).values()) == {4}


def test_no_training_begins_after_the_budget(tmp_path):
    search, made = searched(tmp_path, wobbling)
    assert (
        training_confirmation.run_race(search, candidates(3), LOOKS, time.monotonic() - 1, None)
        == made
        == []
    )


@pytest.mark.parametrize("seeds", [0, 2.5, (), (3, 3), (5, 3), "3", None, True, (0, 3)])
def test_other_numbers_of_seeds_are_refused(seeds):
    with pytest.raises(SearchError, match="`seeds` must be"):
        training_confirmation.looks_of(seeds)


def test_a_recipe_that_dropped_out_is_not_the_best():
    runs = [record(-1, 0.2, "confirmation", seed) for seed in range(5)]
    runs += [record(0, 0.4, "confirmation", seed) for seed in range(3)]
    runs += [record(1, 0.3, "confirmation", seed) for seed in range(4)]  # Ctrl-C
    runs += [record(2, 0.25, "confirmation", seed) for seed in range(5)]
    claim = claim_of(runs, GOAL, 400, Race(LOOKS, (0,)))
    assert claim.best.trial == 1
    assert [side.trial for side in claim.others] == [2, 0]
    assert claim_of(runs, GOAL, 400).best.trial == 0  # with fewer seeds, but in no race


def test_the_interval_allows_for_all_looks():
    runs = [
        record(trial, 0.2 + 0.1 * (trial == 0) + 0.01 * seed, "confirmation", seed)
        for trial in (-1, 0)
        for seed in range(5)
    ]
    races = [Race(looks) for looks in ((), (5,), (2, 5), LOOKS)]
    half = [claim_of(runs, GOAL, 400, race).half_width for race in races]
    assert half[0] == half[1] == half[2] < half[3]
    text = " ".join(claim_sentences(claim_of(runs, GOAL, 400, Race(LOOKS)), GOAL))
    assert "after 3, 5, 8 and 12 seeds, which the interval allows for; it ended after 5" in text


def simulated(effects, spread, times, looks=LOOKS, seed=0):
    """Shares of races that claim a better, and a worse, recipe; and the mean of trainings."""
    random = np.random.default_rng(seed)
    better = worse = trainings = 0
    for _ in range(times):
        values = random.normal(0.7, spread, (len(effects) + 1, looks[-1] + 1))
        values[1:] += np.asarray(effects)[:, None]
        left, own_run = list(range(1, len(effects) + 1)), values[0, -1]
        begun = 0
        for look in looks:
            trainings += (look - begun) * (len(left) + 1)
            begun, means = look, values[:, :look].mean(axis=1)
            best = max(left, key=lambda each: means[each])
            sides = values[0, :look], values[best, :look]
            half = interval(*sides, 0.005, 0.005, len(effects) * len(looks))
            difference, against = means[best] - means[0], means[best] - own_run
            if abs(difference) > half and difference * against > 0:
                better, worse = better + (difference > 0), worse + (difference < 0)
                break
            left = sorted(left, key=lambda each: -means[each])[: math.ceil(len(left) / 2)]
    return better / times, worse / times, trainings / times


@pytest.mark.parametrize("spread", [0.006, 0.02, 0.05])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_at_most_5_percent_of_its_claims_are_false(spread, count):
    false = sum(simulated([0.0] * count, spread, 1000)[:2])
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_it_finds_what_all_seeds_would_find_with_fewer():
    effects = [0.06, 0.0, 0.0, 0.0, 0.0]
    raced, _, trainings = simulated(effects, 0.02, 1000)
    whole, _, all_trainings = simulated(effects, 0.02, 1000, looks=(12,))
    assert raced > 0.9 * whole
    assert trainings < 0.6 * all_trainings


def test_a_race_of_a_real_search_goes_on_where_it_was(points, tmp_path):
    from short_searches import search, tuner_of

    (x, y), validation = points
    tuner = search(tuner_of(tmp_path, max_trials=3), points)
    arguments = {"validation_data": validation, "verbose": 0, "top": 3}
    first = kbatch.confirm(tuner, x, y, seeds=(1, 2), budget="10min", **arguments)
    again = kbatch.confirm(tuner, x, y, seeds=[1, 2], **arguments)
    assert first.equals(again)
    assert first.baseline.sum() == 2
    assert len(first) == 4 + 3
    kbatch.confirm(tuner, x, y, seeds=3, **arguments | {"top": 1})
    assert project.load_facts(tmp_path / "p" / "kbatch")["looks"] == [1, 2, 3]
    # the leader of the search may have left the race after its first seed
    records = Store(tmp_path / "p" / "kbatch").records()
    raced = [record for record in records if record.purpose != "parted"]
    assert len(raced) in (4 + 7 + 2, 4 + 7 + 3)
    assert "a race" in str(kbatch.report(tuner))
