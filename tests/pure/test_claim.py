"""Claims: an interval from three seeds on, few false claims in a simulation, real effects found."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from result_records import GOAL, SECONDS, confirmation, failed, record

from kbatch import outcome
from kbatch.results.claim import claim_of
from kbatch.results.interval import interval, score_error
from kbatch.results.ranking import ranking
from kbatch.results.sentences import claim_sentences

TARGET = replace(GOAL, target=0.8)


def said(claim, goal=GOAL):
    return " | ".join(claim_sentences(claim, goal))


def claims(recipes, seeds, examples, spread, effect=0.0, world="even", times=10_000, accuracy=0.75):
    """Shares of simulated confirmations that claim the best recipe, and the baseline, to be better.

    One recipe is better by `effect`, the others equal the baseline, which was also trained once by
    the search.
    """
    random = np.random.default_rng([recipes, seeds, examples])
    shape, binomial = (times, recipes + 1, seeds + 1), accuracy * (1 - accuracy) / examples
    spreads = np.full((recipes + 1, 1), spread)
    if world == "uneven":
        spreads[1:] *= 5
    noise = random.normal(0, 1, shape) * spreads
    if world == "some fail":  # to leave chance at all
        noise = np.where(random.random(shape) < spread, 0.5 - accuracy, 0.0)
    # of the binomial variance, what a recipe's seeds share and what is each seed's own, as measured
    if world == "same examples":
        noise += random.normal(
            0, np.sqrt(0.05 * binomial), (times, recipes + 1, 1)
        ) + random.normal(0, np.sqrt(0.54 * binomial), shape)
    else:
        noise += random.normal(0, np.sqrt(binomial), shape)
    truth = np.full((recipes + 1, 1), accuracy)
    truth[1] += effect
    values = np.clip(truth + noise, 0, 1)
    own_run, values = values[:, 0, seeds], values[..., :seeds]
    means, each = values.mean(axis=2), np.arange(times)
    best = means[:, 1:].argmax(axis=1) + 1
    errors = np.sqrt(means * (1 - means) / examples)
    half = interval(values[:, 0], values[each, best], errors[:, 0], errors[each, best], recipes)
    difference, against = means[each, best] - means[:, 0], means[each, best] - own_run
    return float(np.mean((difference > half) & (against > 0))), float(
        np.mean((-difference > half) & (against < 0))
    )


@pytest.mark.parametrize(
    ("world", "spreads"),
    [
        ("even", (0.0005, 0.005, 0.02, 0.05)),
        ("same examples", (0.0005, 0.005, 0.02)),
        ("uneven", (0.002, 0.01)),
        ("some fail", (0.1, 0.3, 0.5)),
    ],
)
@pytest.mark.parametrize("examples", [400, 20_000])
def test_at_most_5_percent_of_claims_are_false(world, spreads, examples):
    for recipes in (1, 2, 3, 5):
        for seeds in (3, 4, 6, 10):
            for spread in spreads:
                false = sum(claims(recipes, seeds, examples, spread, world=world))
                # three errors of the simulation
                assert false <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 10_000), (
                    recipes,
                    seeds,
                    spread,
                    false,
                )


@pytest.mark.parametrize(
    ("recipes", "seeds", "examples", "spread", "effect", "found"),
    [
        (1, 3, 400, 0.02, 0.1, 0.7),
        (2, 5, 400, 0.02, 0.1, 0.95),
        (2, 5, 20_000, 0.02, 0.05, 0.7),
        (3, 10, 400, 0.02, 0.05, 0.7),
        (3, 3, 20_000, 0.005, 0.03, 0.65),
    ],
)
def test_real_effects_are_found(recipes, seeds, examples, spread, effect, found):
    better, worse = claims(recipes, seeds, examples, spread, effect)
    assert better > found
    assert worse == 0


def test_below_three_seeds_there_are_single_values_and_no_claim():
    for seeds in (1, 2):
        runs = confirmation({-1: 0.15, 0: 0.4}, seeds)
        claim = claim_of(runs, GOAL, 400)
        assert claim.verdict == "few seeds"
        text = said(claim)
        assert "Too few seeds to claim" in text
        assert not any(word in text for word in ("±", "sooner", "interval", "standard error"))
    first, second = (
        ", ".join(f"{one.score:.4f}" for one in runs if one.trial == trial) for trial in (-1, 0)
    )
    assert f"score per second: {first} -> {second}" in text


def test_a_difference_that_xla_makes_too_is_said():
    plain = confirmation({-1: 0.2, 0: 0.33}, 3)
    jitted = [
        replace(one, recipe=replace(one.recipe, jit_compile=True)) if one.trial < 0 else one
        for one in plain
    ]
    words = "XLA compiled only the baseline: part of the difference is due to that"
    assert words in said(claim_of(jitted, GOAL, 400))
    assert "XLA" not in said(claim_of(plain, GOAL, 400))


@pytest.mark.parametrize(
    ("seconds", "words"), [((8.0, 2.0), "4.0 times sooner"), ((2.0, 4.2), "2.1 times later")]
)
def test_a_better_recipe_may_reach_the_aim_later(seconds, words):
    claim = claim_of(confirmation({-1: 0.2, 0: 0.33}, 3), GOAL, 400)
    sides = [
        replace(side, seconds_to_goal=each, missed=0)
        for side, each in zip((claim.baseline, claim.best), seconds, strict=True)
    ]
    claim = replace(claim, baseline=sides[0], best=sides[1])
    assert claim.pace == words
    assert f": {words}" in said(claim)


def test_equal_seconds_are_as_soon():
    claim = claim_of(confirmation({-1: 0.2, 0: 0.33}, 3), GOAL, 400)
    best = replace(claim.best, seconds_to_goal=claim.baseline.seconds_to_goal, missed=0)
    assert replace(claim, best=best).pace == "as soon"


def test_three_seeds_give_an_interval_for_all_confirmed_recipes():
    runs = confirmation({-1: 0.2, 0: 0.33}, 3)
    claim = claim_of(runs, GOAL, 400)
    assert claim.verdict == "better"
    assert "times sooner" in said(claim)
    assert "interval is above 0" in said(claim)
    scores = [[one.score for one in runs if one.trial == trial] for trial in (-1, 0)]
    errors = [
        np.sqrt(
            np.mean(
                [score_error(one.outcome, GOAL, 400) ** 2 for one in runs if one.trial == trial]
            )
        )
        for trial in (-1, 0)
    ]
    assert claim.half_width == pytest.approx(interval(*scores, *errors, 1))
    more = claim_of([*runs, *confirmation({1: 0.25, 2: 0.1}, 3)], GOAL, 400)
    assert more.half_width > 1.2 * claim.half_width
    assert [side.trial for side in more.others] == [1, 2]
    assert "for the best of 3 recipes" in said(more)


def test_few_seeds_are_no_surer_than_the_validation_examples():
    runs = [
        dataclasses.replace(r, score=0.02 if r.baseline else 0.021)
        for r in confirmation({-1: 0.2, 0: 0.21}, 3)
    ]
    assert claim_of(runs, GOAL, 400).verdict == "noise"
    assert claim_of(runs, GOAL, 4_000_000).verdict == "better"


def test_no_boast_stands_beside_a_doubt():
    claim = claim_of(confirmation({-1: 0.2, 0: 0.22}, 3), GOAL, 400)
    assert claim.speed_up > 1.1
    assert "within noise" in said(claim)
    assert "sooner" not in said(claim)
    worse = claim_of(confirmation({-1: 0.35, 0: 0.1}, 3), GOAL, 400)
    assert "baseline is better" in said(worse)
    assert "sooner" not in said(worse)


def test_the_searchs_own_run_of_the_baseline_is_evidence():
    """Newcomer A2: a baseline of 90.6 in the search, 5.6 confirmed; the best recipe 68.7."""
    again = confirmation({-1: 0.05, 0: 0.3}, 3)
    assert claim_of([record(-1, 0.04, "baseline"), *again], GOAL, 400).verdict == "better"
    claim = claim_of([record(-1, 0.4, "baseline"), *again], GOAL, 400)
    assert claim.verdict == "contradicted"
    assert "one more run speaks against trial 0" in said(claim)
    assert "do not claim" in said(claim)
    assert "sooner" not in said(claim)


def test_a_training_that_failed_counts_as_chance():
    runs = confirmation({-1: 0.3, 0: 0.31}, 2)
    runs[3] = failed(runs[3])
    claim = claim_of(runs, GOAL, 400)
    assert (claim.best.seeds, claim.best.missed) == (2, 1)
    assert claim.best.value.mean == pytest.approx((0.5 + runs[1].outcome.value) / 2)


def test_without_a_confirmation_nothing_is_claimed():
    assert claim_of([record(-1, 0.2, "baseline"), record(0, 0.3)], GOAL, 400) is None
    assert "nothing is claimed" in claim_sentences(None, GOAL)[0]


def test_with_a_target_a_claim_compares_the_times_to_it():
    runs = [
        record(
            trial,
            0.4 + 0.003 * seed,
            "confirmation",
            seed,
            speed,
            goal=TARGET,
            batch_size=32 if trial < 0 else 64,
        )
        for seed in (1, 2, 3)
        for trial, speed in ((-1, 1.0), (0, 4.0))
    ]
    claim = claim_of(runs, TARGET, 20_000)
    assert claim.verdict == "better"
    assert claim.speed_up == pytest.approx(
        runs[0].outcome.train_seconds / runs[1].outcome.train_seconds, rel=0.2
    )
    assert "holds val_accuracy 0.8 after" in said(claim, TARGET)


def test_with_a_target_noise_is_of_the_time_not_the_value():
    """Main-path A11: recipes of 6.7, 33.8 and 50.4 s were all "within noise", as each held it."""
    trials = [
        record(number, 0.4, speed=speed, goal=TARGET, batch_size=32 * 2**number)
        for number, speed in enumerate((12.0, 11.5, 1.0))
    ]
    assert {round(one.outcome.value, 1) for one in trials} == {0.8, 0.9}
    assert [rank.verdict for rank in ranking(trials, TARGET, 400)] == [
        "best",
        "within noise of the best",
        "",
    ]


def test_the_error_of_a_time_is_at_least_the_measuring_gap():
    one = record(0, 0.4, goal=TARGET)
    times = [seconds for seconds, _ in one.outcome.curve]
    apart = (times[-1] - times[-2]) / times[-1]
    sure = score_error(one.outcome, TARGET, 10**12)
    assert sure == pytest.approx(one.score * apart / 12**0.5, rel=0.01)
    assert score_error(one.outcome, TARGET, 100) > sure
    unreached = record(0, 0.1, goal=TARGET)
    assert score_error(unreached.outcome, TARGET, 400) == pytest.approx(
        outcome.standard_error(unreached.outcome.value, 400) / SECONDS
    )
    assert score_error(record(0, 0.1).outcome, replace(GOAL, metric="val_auc"), 400) is None
