"""Rules for other batch sizes, as equations and by brute force."""

import itertools
import math

import keras_tuner
import numpy as np
import pytest

from kbatch import Space
from kbatch.errors import SpaceError
from kbatch.rules import batch_schedule, scaling
from kbatch.rules.noise_scale import DECAY, NoiseEstimate, Smoothed, critical_batch, estimate, gain
from kbatch.rules.scaling import (
    LEARNING_RATE_RULES,
    MOST_PASSES,
    check_micro_batches,
    learning_rate_factor,
    micro_batch_of,
)


@pytest.mark.parametrize("rule", LEARNING_RATE_RULES)
def test_two_steps_of_a_rule_are_one_step(rule):
    for first, second in ((2, 8), (4, 4), (1, 16)):
        whole = learning_rate_factor(32 * first * second, rule)
        assert whole == pytest.approx(
            learning_rate_factor(32 * first, rule) * learning_rate_factor(32 * second, rule)
        )
    assert learning_rate_factor(32, rule) == 1.0


def test_an_unknown_rule_is_refused():
    with pytest.raises(SpaceError, match="linear, sqrt, constant"):
        learning_rate_factor(64, "cubic")


@pytest.mark.parametrize("limit", [1, 7, 16, 40, 100])
def test_a_micro_batch_is_the_largest_divisor_within_the_limit(limit):
    for batch_size in range(1, 200):
        divisors = [size for size in range(1, limit + 1) if batch_size % size == 0]
        expected = None if batch_size <= limit else max(divisors)
        assert micro_batch_of(batch_size, limit) == expected
        assert micro_batch_of(batch_size, None) is None


@pytest.mark.parametrize("limit", [7, 16, 40])
def test_batches_that_need_many_more_passes_are_refused(limit):
    for batch_size in range(1, 200):
        passes = batch_size // (micro_batch_of(batch_size, limit) or batch_size)
        if passes > MOST_PASSES * -(-batch_size // limit):
            with pytest.raises(SpaceError, match=f"above `micro_batch_size`, {limit}"):
                check_micro_batches([batch_size], limit)
        else:
            check_micro_batches([batch_size], limit)


SIZES = (8, 32, 128, 1024)


def recipe(batch_size, **axes):
    """The recipe of a space with one value on each axis."""
    told = {"optimizer": "adam", "learning_rate": {"adam": 0.01}, "policy": "float32"}
    space = Space(**{**told, "jit_compile": False, "batch_size": batch_size, **axes})
    return space.recipe(keras_tuner.HyperParameters(), examples=1200)


@pytest.mark.parametrize("batch", SIZES)
def test_values_follow_their_rules(batch):
    ratio = batch / 32
    made = recipe(
        batch,
        weight_decay=0.01,
        dropout_scale=0.5,
        dropout_rule="sqrt",
        momentum=0.8,
        ema=0.95,
        momentum_rule="examples",
    )
    assert made.learning_rate == pytest.approx(0.01 * math.sqrt(ratio))
    assert made.weight_decay == pytest.approx(0.01 * math.sqrt(ratio))
    assert made.dropout_scale == pytest.approx(0.5 * math.sqrt(ratio))
    assert made.momentum == pytest.approx(0.8**ratio)
    assert made.ema == pytest.approx(0.95**ratio)


@pytest.mark.parametrize("batch", SIZES)
def test_values_stay_by_the_rule_constant(batch):
    fixed = {"weight_decay": 0.01, "dropout_scale": 0.5, "momentum": 0.8, "ema": 0.95}
    made = recipe(batch, **fixed, weight_decay_rule="constant")
    assert {name: getattr(made, name) for name in fixed} == fixed


def test_values_follow_the_whole_batch_not_the_pass():
    whole = recipe(256, weight_decay=0.01, ema=0.9, momentum_rule="examples")
    passes = recipe(256, weight_decay=0.01, ema=0.9, momentum_rule="examples", micro_batch_size=16)
    assert passes.accumulation_steps == 16
    for name in ("learning_rate", "weight_decay", "momentum", "ema", "warmup_updates"):
        assert getattr(passes, name) == getattr(whole, name)


def test_settings_of_an_optimizer_are_the_models_own_if_compiled():
    space = Space(
        optimizer=("adam", "compiled"),
        weight_decay=0.1,
        momentum=0.5,
        clip_norm=1.0,
        schedule="cosine",
        batch_schedule="linear:4",
        training="sam:0.1",
        ema=0.9,
        policy="float32",
        jit_compile=False,
    )
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    hp.values["optimizer"] = "compiled"
    made = space.recipe(hp, examples=1200)
    assert (made.optimizer, made.training, made.ema) == ("compiled", "sam:0.1", 0.9)
    assert made.learning_rate is None
    assert (made.weight_decay, made.momentum, made.clip_norm) == (0.0, 0.9, None)
    assert (made.schedule, made.batch_schedule) == ("constant", "constant")


def test_none_is_a_value_of_a_searched_axis():
    hp = keras_tuner.HyperParameters()
    assert Space(clip_norm=(0, 1.0)).clip_norm == (None, 1.0)
    with pytest.raises(SpaceError, match="each once"):
        Space(ema=(None, 0.0))
    space = Space(clip_norm=(None, 1.0), ema=(None, 0.9), jit_compile=False, policy="float32")
    space.declare(hp)
    held_by_name = {axis.name: axis.values for axis in hp.space if axis.name != "batch_size"}
    assert held_by_name["clip_norm"] == [0.0, 1.0]
    assert held_by_name["ema"] == [0.0, 0.9]
    for held, wanted in ((0.0, None), (1.0, 1.0)):
        hp.values["clip_norm"] = held
        assert space.recipe(hp).clip_norm == wanted


def test_growing_batches_exclude_xla():
    assert Space(batch_schedule="linear:4").compilations == (False,)
    with pytest.raises(SpaceError, match=r"without XLA.*Received: .*linear:4.*\. Pass"):
        Space(batch_schedule=("constant", "linear:4"), jit_compile=(False, True))


def test_growing_batches_follow_the_usual_rule():
    Space(batch_schedule="linear:4", learning_rate_rule={"sgd": "linear"})
    for rule in ("constant", "gain:480"):
        with pytest.raises(SpaceError, match=r"usual rule.*Received: .*sgd"):
            Space(batch_schedule="linear:4", learning_rate_rule={"sgd": rule})


def test_old_facts_do_not_name_the_new_axes():
    told = Space(optimizer=("sgd", "adam"), policy="float32", jit_compile=False).to_dict()
    assert set(told["learning_rate"]) == set(told["learning_rate_rule"]) == {"sgd", "adam"}
    assert not {"weight_decay", "momentum_rule", "training", "ema"} & set(told)
    more = Space(optimizer="lamb", ema=0.9, policy="float32", jit_compile=False).to_dict()
    assert (more["ema"], set(more["learning_rate"])) == ((0.9,), {"sgd", "adam", "lamb"})


@pytest.mark.parametrize("passes", [2, 4, 16])
@pytest.mark.parametrize("size", [1, 8])
def test_the_expected_norms_give_back_gradient_and_noise(passes, size):
    squared_norm, trace = 3.0, 40.0
    found = estimate(
        squared_norm + trace / size, squared_norm + trace / (size * passes), size, passes
    )
    assert found.squared_norm == pytest.approx(squared_norm)
    assert found.trace == pytest.approx(trace)
    assert critical_batch(found) == pytest.approx(trace / squared_norm)


def test_the_trace_of_single_examples_is_their_variance():
    gradients = np.random.default_rng(0).normal(1.0, 2.0, (64, 5))
    norms = (gradients**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
    found = estimate(*norms, examples_per_pass=1, passes=64)
    assert found.trace == pytest.approx(gradients.var(axis=0, ddof=1).sum())
    assert found.squared_norm == pytest.approx(norms[1] - found.trace / 64)


def test_estimates_have_no_bias_in_simulated_updates():
    rng, size, passes = np.random.default_rng(0), 4, 8
    gradient, variances = np.array([1.0, -0.5, 0.2]), np.array([9.0, 4.0, 1.0])
    noise = rng.normal(size=(20_000, passes, 3)) * np.sqrt(variances / size)
    drawn = gradient + noise
    found = estimate(
        (drawn**2).sum(-1).mean(), (drawn.mean(axis=1) ** 2).sum(-1).mean(), size, passes
    )
    assert found.squared_norm == pytest.approx((gradient**2).sum(), rel=0.02)
    assert found.trace == pytest.approx(variances.sum(), rel=0.01)


def test_a_gradient_hidden_by_noise_has_no_critical_batch():
    assert critical_batch(NoiseEstimate(-1e-3, 5.0)) is None
    assert critical_batch(NoiseEstimate(0.0, 5.0)) is None
    assert critical_batch(NoiseEstimate(1.0, -0.1)) == 0.0


def test_smoothing_divides_averages_and_corrects_their_bias():
    rng = np.random.default_rng(0)
    drawn = [NoiseEstimate(*pair) for pair in rng.uniform(1, 3, (50, 2))]
    smoothed = Smoothed()
    assert smoothed.critical_batch is None
    for each in drawn:
        smoothed = smoothed.updated(each)
    weights = DECAY ** np.arange(49, -1, -1)
    norms = np.average([each.squared_norm for each in drawn], weights=weights)
    traces = np.average([each.trace for each in drawn], weights=weights)
    assert smoothed.estimate.squared_norm == pytest.approx(norms)
    assert smoothed.estimate.trace == pytest.approx(traces)
    assert smoothed.critical_batch == pytest.approx(traces / norms)


def test_smoothing_is_no_average_of_ratios():
    smoothed = (
        Smoothed(decay=0.5).updated(NoiseEstimate(-0.5, 4.0)).updated(NoiseEstimate(1.5, 4.0))
    )
    assert smoothed.critical_batch == pytest.approx(4.0 / ((1.5 * 2 - 0.5) / 3))


@pytest.mark.parametrize("noise_scale", [0.0, 1.0, 480.0, 1e6])
def test_the_gain_at_the_reference_batch_is_1(noise_scale):
    assert gain(32, noise_scale, 32) == 1.0
    assert learning_rate_factor(32, f"gain:{noise_scale}") == 1.0


@pytest.mark.parametrize("batch_size", [8, 64, 4096])
def test_the_gain_lies_between_constant_and_linear(batch_size):
    assert gain(batch_size, 1e12, 32) == pytest.approx(batch_size / 32)
    assert gain(batch_size, 1e-12, 32) == pytest.approx(1.0)
    gains = [gain(batch_size, noise, 32) for noise in (1, 10, 100, 1000)]
    assert gains == sorted(gains, reverse=batch_size < 32)


def test_the_gain_is_the_ratio_of_expected_norms():
    squared_norm, trace = 2.0, 300.0
    expected = (squared_norm + trace / 32) / (squared_norm + trace / 256)
    assert gain(256, trace / squared_norm, 32) == pytest.approx(expected)


def test_gains_from_one_batch_to_the_next_multiply():
    first, second = gain(128, 480, 32), gain(1024, 480, 128)
    assert gain(1024, 480, 32) == pytest.approx(first * second)


def test_a_space_scales_its_rates_by_the_gain():
    space = Space(
        optimizer="sgd",
        learning_rate={"sgd": 0.01},
        learning_rate_rule={"sgd": "gain:480"},
        batch_size=480,
    )
    import keras_tuner

    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    recipe = space.recipe(hp)
    assert recipe.learning_rate == pytest.approx(0.01 * (480 / 32 + 1) / 2)
    assert space.rate_at_32(recipe) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "rule", ["gain", "gain:", "gain:-1", "gain:nan", "gain:inf", "gain:1_0", "gain:many", 480, None]
)
def test_nonsense_in_place_of_a_noise_scale_is_refused(rule):
    with pytest.raises(SpaceError, match=r"must be one of.*Received: .*Pass one of these names"):
        learning_rate_factor(64, rule)
    with pytest.raises(SpaceError):
        Space(learning_rate_rule={"sgd": rule})


def test_an_infinite_noise_scale_is_no_rule_but_linear_is():
    assert not math.isinf(learning_rate_factor(64, "gain:1e300"))
    assert learning_rate_factor(64, "gain:1e300") == pytest.approx(
        learning_rate_factor(64, "linear")
    )


KINDS = ("linear", "exponential", "steps")
CASES = list(itertools.product(KINDS, (32, 96, 1000, 7), (1.5, 4, 100), (1, 2, 4)))


def sizes(kind, last, factor, multiple):
    last *= multiple
    return last, [batch_schedule.at(kind, k / 200, last, factor, multiple) for k in range(201)]


@pytest.mark.parametrize(("kind", "last", "factor", "multiple"), CASES)
def test_a_batch_grows_from_its_first_size_to_its_last(kind, last, factor, multiple):
    last, found = sizes(kind, last, factor, multiple)
    assert (found[0], found[-1]) == (batch_schedule.first(last, factor, multiple), last)
    assert found == sorted(found)
    assert all(size % multiple == 0 and size >= multiple for size in found)
    assert len(set(found)) <= batch_schedule.LEVELS
    assert batch_schedule.at(kind, -1.0, last, factor, multiple) == found[0]
    assert batch_schedule.at(kind, 9.0, last, factor, multiple) == last


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [10, 1000, 15360])
@pytest.mark.parametrize(("last", "factor", "multiple"), [(256, 8, 1), (96, 3, 4), (7, 100, 1)])
def test_updates_are_counted_batch_by_batch(kind, examples, last, factor, multiple):
    done, count = 0, 0
    while done < examples:
        done += batch_schedule.at(kind, done / examples, last, factor, multiple)
        count += 1
    assert batch_schedule.updates(kind, examples, last, factor, multiple) == count


def test_the_first_pass_is_a_share_of_the_first_batch():
    assert batch_schedule.first_pass(64, 8, 2) == 4
    assert batch_schedule.first_pass(64, 100, 4) == 1
    assert batch_schedule.first_pass(64, 1, 4) == 16


def test_linear_has_equal_differences_exponential_equal_ratios():
    levels = [level / 8 for level in range(8)]
    linear = [batch_schedule.at("linear", share, 8000, 8) for share in levels]
    assert {b - a for a, b in itertools.pairwise(linear)} == {1000}
    growing = [batch_schedule.at("exponential", share, 1280, 128) for share in levels]
    assert growing == [10 * 2**level for level in range(8)]


def test_steps_grow_where_the_learning_rate_would_fall():
    for share in (k / 1000 for k in range(1001)):
        tenths = round(1 / scaling.decay_factor("steps", share))
        assert batch_schedule.at("steps", share, 10_000, 1000) == 10 * tenths


def test_the_first_size_is_the_share_of_the_factor():
    assert batch_schedule.first(256, 8) == 32
    assert batch_schedule.first(256, 1000) == 1
    assert batch_schedule.first(256, 1000, multiple=4) == 4  # an example for each pass


@pytest.mark.parametrize("direction", ["max", "min"])
def test_plateaus_are_measurements_without_a_better_one(direction):
    sign = 1 if direction == "max" else -1
    values = [sign * value for value in (1, 2, 2, 1, 2, 2, 3, 3, 4, 1, 1, 1, 1)]
    wanted = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4]
    found = [batch_schedule.plateaus(values[: n + 1], direction) for n in range(len(values))]
    assert found == wanted
    assert batch_schedule.plateaus([]) == 0


def test_doublings_end_at_the_last_size():
    assert [batch_schedule.doubled(n, 100, 5, multiple=2) for n in range(4)] == [20, 40, 80, 100]


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_size_is_within_the_noise_scale_between_first_and_last(multiple):
    found = [batch_schedule.within(scale, 256, 8, multiple) for scale in range(400)]
    assert (found[0], found[-1]) == (32, 256)
    assert all(size <= max(scale, 32) for scale, size in enumerate(found))
    assert found == sorted(found)
    assert len(set(found)) == batch_schedule.LEVELS
