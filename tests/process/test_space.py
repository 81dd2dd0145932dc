import dataclasses
import json
import subprocess
import sys

import keras_tuner
import numpy as np
import pytest

from kbatch import Recipe, Space
from kbatch.errors import RecipeError, SpaceError
from kbatch.rules import scaling
from kbatch.runtime import device
from kbatch.space import combinations


def declared(space):
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    return hp


def names(space):
    return [axis.name for axis in declared(space).space]


def test_a_tuner_sees_what_may_vary_and_batch_size_last():
    assert names(Space(policy="float32")) == [
        "optimizer",
        "learning_rate_sgd",
        "learning_rate_adam",
        "batch_size",
    ]
    every = Space(
        policy=("float32", "mixed_bfloat16"),
        jit_compile=(False, True),
        recompute=("none", "sqrt"),
        warmup_passes=(0, 1),
        augmentation=("none", "flip"),
    )
    rates = ["learning_rate_sgd", "learning_rate_adam"]
    assert names(every) == [
        "policy",
        "optimizer",
        *rates,
        "jit_compile",
        "recompute",
        "warmup_passes",
        "augmentation",
        "batch_size",
    ]


def test_a_rate_is_conditional_on_an_optimizer_that_varies():
    conditions = {axis.name: axis.conditions for axis in declared(Space()).space}
    assert [(each.name, each.values) for each in conditions["learning_rate_adam"]] == [
        ("optimizer", ["adam"])
    ]
    assert names(Space(optimizer="adam", policy="float32")) == ["learning_rate_adam", "batch_size"]
    assert (
        names(
            Space(optimizer="adam", learning_rate={"adam": 0.01}, policy="float32", batch_size=64)
        )
        == []
    )


def test_a_project_of_before_declared_the_fixed_axes_too():
    space = Space(optimizer="adam", policy="float32", batch_size=64)
    hp = declared(space)
    for name, value in {
        "optimizer": "adam",
        "policy": "float32",
        "batch_size": 64,
        "jit_compile": False,
    }.items():
        hp.Fixed(name, value)
    assert space.recipe(hp) == space.recipe(declared(space))


def test_drawn_values_stand_in_the_recipe_whatever_is_fixed():
    space = Space(
        optimizer=("adam", "compiled"),
        learning_rate={"adam": 0.01},
        policy="float32",
        batch_size=(16, 64),
    )
    hp = declared(space)
    hp.values |= {"optimizer": "compiled", "batch_size": 64}
    assert "learning_rate_adam" not in space.drawn(hp)
    assert space.recipe(hp) == Recipe(64, "compiled", None)


def test_numbers_that_equal_truth_values_are_truth_values():
    space = Space(jit_compile=(0, 1), policy="float32")
    assert space.jit_compile == (False, True)
    assert [type(value) for value in space.jit_compile] == [bool, bool]
    assert space.recipe(declared(space)).jit_compile is False


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"label_smoothing": (0, "0.1")}, "label_smoothing"),
    ],
)
def test_an_unsearchable_value_is_refused_with_its_axis(axes, name):
    with pytest.raises(SpaceError, match=f"`{name}` must"):
        Space(**axes)


def test_the_size_of_a_space_counts_each_optimizers_rates():
    rates = {"sgd": [0.1, 0.01, 0.001], "adam": 0.001}
    space = Space(
        optimizer=("sgd", "adam", "compiled"),
        learning_rate=rates,
        policy="float32",
        batch_size=(16, 32),
    )
    assert space.size() == (3 + 1 + 1) * 2
    assert Space(policy="float32").size() is None


@pytest.mark.parametrize(
    ("optimizer", "batch", "factor"),
    [("sgd", 128, 4.0), ("adam", 128, 2.0), ("sgd", 16, 0.5), ("adam", 32, 1.0)],
)
def test_a_rate_at_32_is_carried_by_the_optimizers_rule(optimizer, batch, factor):
    space = Space(optimizer=optimizer, learning_rate={optimizer: 0.01}, batch_size=batch)
    recipe = space.recipe(declared(space))
    assert recipe.learning_rate == pytest.approx(0.01 * factor)
    assert space.rate_at_32(recipe) == pytest.approx(0.01)


def test_warm_up_grows_with_the_batch_from_nothing_smoothly():
    for batch, updates in ((16, 0), (32, 0), (64, 5), (128, 4), (512, 1)):
        space = Space(batch_size=batch)
        assert space.recipe(declared(space), examples=640).warmup_updates == updates
    passes = [
        scaling.updates_of_warmup(batch, 10**9) * batch / 1e9
        for batch in (32, 33, 48, 64, 128, 1024, 8192)
    ]
    assert passes == sorted(passes)
    assert passes[0] == 0
    assert passes[1] == pytest.approx(1 / 33, abs=1e-4)
    assert passes[-1] == pytest.approx(1, abs=0.01)
    assert scaling.updates_of_warmup(64, 640, passes=0.5) == 2


def test_warm_up_takes_at_most_a_tenth_of_the_horizon():
    space = Space(batch_size=64)
    assert (
        space.recipe(declared(space), examples=20_000, horizon_examples=64 * 63).warmup_updates == 6
    )
    assert scaling.updates_of_warmup(64, 20_000, horizon_examples=64 * 9) == 0


def test_a_micro_batch_limit_accumulates_over_equal_passes():
    space = Space(batch_size=(16, 96, 100), micro_batch_size=40)
    hp = declared(space)
    for batch, micro in ((16, None), (96, 32), (100, 25)):
        hp.values["batch_size"] = batch
        assert space.recipe(hp).micro_batch_size == micro


def test_a_replaced_axis_leaves_the_sizes_the_defaults():
    replaced = dataclasses.replace(Space(), jit_compile=True)
    assert replaced.default_sizes
    written_out = Space(batch_size=list(Space().batch_size))
    assert written_out == Space()
    assert not written_out.default_sizes


def test_a_list_of_rates_is_a_choice():
    space = Space(
        optimizer="adam", learning_rate={"adam": [1e-4, 1e-3]}, policy="float32", batch_size=64
    )
    by_name = {axis.name: type(axis).__name__ for axis in declared(space).space}
    assert by_name == {"learning_rate_adam": "Choice"}


def test_the_compiled_optimizer_has_no_rate():
    space = Space(optimizer="compiled")
    recipe = space.recipe(declared(space), examples=1000)
    assert recipe.learning_rate is None
    assert recipe.warmup_updates == 0
    assert space.rate_at_32(recipe) is None


@pytest.mark.parametrize(
    "axes",
    [
        {"optimizer": "lion"},
        {"optimizer": ()},
        {"policy": ("float32", "float32")},
        {"batch_size": (0,)},
        {"batch_size": ("32",)},
        {"jit_compile": ("auto",)},
        {"learning_rate": {"sgd": (0.1, 0.01), "adam": 1e-3}},
        {"learning_rate": {"sgd": 0.1}},
        {"learning_rate": {"sgd": (0.1,), "adam": 1e-3}},
        {"learning_rate_rule": {"sgd": "cubic"}},
        {"warmup_passes": -1},
        {"baseline": 32},
        {"micro_batch_size": 0},
        {"learning_rate": 1e-3},
        {"learning_rate": (1e-3, 1e-2)},
        {"learning_rate": {"sgd": 0.1, "adam": 1e-3, "lion": 1e-3}},
        {"learning_rate": {"sgd": float("nan"), "adam": 1e-3}},
        {"learning_rate": {"sgd": (1e-3, float("inf")), "adam": 1e-3}},
        {"learning_rate_rule": {"Adam": "linear"}},
        {"learning_rate_rule": "linear"},
        {"warmup_passes": float("nan")},
        {"warmup_passes": (1.0, float("inf"))},
        {"warmup_passes": True},
        {"batch_size": {32: 1}},
        {"batch_size": ([32],)},
        {"micro_batch_size": 48, "batch_size": (96, 97)},
    ],
)
def test_axes_that_cannot_be_searched_are_refused(axes):
    with pytest.raises(SpaceError, match=r"Received: "):
        Space(**axes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight_decay", (0, 0.01)),
        ("momentum", 0.5),
        ("beta_2", (0.99, 0.999)),
        ("clip_norm", (0, 1.0)),
        ("schedule", "cosine"),
        ("batch_schedule", "exponential:8"),
        ("warmup_passes", 2.0),
    ],
)
def test_settings_of_a_compiled_optimizer_are_refused(name, value):
    with pytest.raises(SpaceError, match=f"must be the model's own. Received: {name}="):
        Space(optimizer="compiled", jit_compile=False, **{name: value})
    Space(optimizer=("compiled", "adam"), jit_compile=False, **{name: value})
    # what the model's own optimizer does not decide is searched with it
    Space(optimizer="compiled", ema=(0, 0.9), dropout_scale=(1, 2), training="sam:0.05")


def test_beta_2_is_drawn_for_the_adam_family_only():
    space = Space(("sgd", "adam", "lamb"), beta_2=(0.95, 0.999), batch_size=32, policy="float32")
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    found = {}
    for optimizer in ("sgd", "adam", "lamb"):
        hp.values |= {"optimizer": optimizer, "beta_2": 0.95, f"learning_rate_{optimizer}": 0.01}
        assert hp.is_active("beta_2") == (optimizer != "sgd")
        found[optimizer] = space.recipe(hp).beta_2
    assert found == {"sgd": 0.999, "adam": 0.95, "lamb": 0.95}
    assert "beta_2" not in [axis.name for axis, _ in Space("sgd").searched()]
    fixed = {"learning_rate": {"sgd": 0.1, "adam": [1e-3, 1e-2], "lamb": 1e-3}}
    assert dataclasses.replace(space, **fixed, jit_compile=False).size() == 1 + 2 * 2 + 2
    with pytest.raises(SpaceError, match="`beta_2` must come with one of adam, adamw, lamb as"):
        Space(("sgd", "lars"), beta_2=(0.95, 0.999))
    with pytest.raises(RecipeError, match=r"`beta_2` must be left out .* Received: beta_2=0.95"):
        Recipe(optimizer="sgd", beta_2=0.95)


def test_a_batch_that_divides_badly_is_refused_with_a_better_one():
    with pytest.raises(
        SpaceError,
        match=r"97, which takes 97 passes of 1 where 3 would do. Pass multiples of 48, such as 144",
    ):
        Space(micro_batch_size=48, batch_size=(32, 97))


def test_a_batch_by_noise_must_have_a_divisor_near_its_half():
    with pytest.raises(SpaceError, match=r"near its half. Received: 37, which takes 37 passes"):
        Space(batch_size=(32, 37), batch_schedule=("constant", "noise:8"), jit_compile=False)
    space = Space(batch_size=(15, 32), batch_schedule="noise:4", jit_compile=False)
    assert [space.micro_batch(size, "noise:4") for size in (15, 32)] == [5, 16]
    assert space.micro_batch(32, "linear:4") is None


def test_what_numpy_holds_is_taken_as_plain_values():
    plain = Space(
        optimizer=("sgd", "adam"),
        learning_rate={"sgd": (0.25, 0.5), "adam": [0.125, 0.5]},
        jit_compile=(False, True),
        batch_size=(32, 64),
        warmup_passes=(0.5,),
        micro_batch_size=32,
    )
    numpy = Space(
        optimizer=np.array(["sgd", "adam"]),
        learning_rate={"sgd": (np.float32(0.25), np.float64(0.5)), "adam": np.array([0.125, 0.5])},
        jit_compile=(np.False_, np.True_),
        batch_size=np.array([32, 64]),
        warmup_passes=np.float32(0.5),
        micro_batch_size=np.int64(32),
    )
    assert numpy == plain
    assert json.dumps(numpy.to_dict()) == json.dumps(plain.to_dict())
    assert Space(batch_size=range(16, 64, 16)).batch_size == (16, 32, 48)


@pytest.mark.parametrize(
    ("capability", "policies"),
    [
        (None, ("float32",)),
        ((6, 1), ("float32",)),
        ((7, 0), ("float32", "mixed_float16")),
        ((9, 0), ("float32", "mixed_float16")),
        ({}, ("float32",)),
    ],
    ids=["cpu", "pascal", "volta", "hopper", "a GPU that does not say"],
)
def test_the_default_policies_are_fast_on_the_machine(capability, policies, monkeypatch):
    import tensorflow as tf

    details = {"compute_capability": capability} if isinstance(capability, tuple) else {}
    monkeypatch.setattr(
        tf.config, "get_visible_devices", lambda kind: [] if capability is None else ["GPU:0"]
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    device.fast_policies.cache_clear()
    try:
        space = Space()
        assert (space.policies, space.policy) == (policies, None)
        assert {combination.policy for combination in combinations(space)} == set(policies)
        assert space.to_dict()["policy"] == policies
        assert space.recipe(declared(space)).policy == "float32"
        # named, it is taken on any machine
        assert Space(policy="mixed_float16").policies == ("mixed_float16",)
    finally:
        device.fast_policies.cache_clear()


def test_a_space_is_a_value_that_asks_no_device():
    code = (
        "import sys, kbatch\n"
        "space = kbatch.Space()\n"
        "print(space == kbatch.Space(), 'batch_size' in space.reserved, "
        "'policy=None' in repr(space))\n"
        "print('tensorflow' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True", "False", "False"], done.stderr


def test_the_space_describes_itself_in_json():
    assert Space().to_dict()["baseline"] == Recipe().to_dict()


def test_whole_numbers_and_fractions_may_stand_together():
    space = Space(warmup_passes=(0, 0.5), learning_rate={"sgd": [1, 0.5], "adam": 1})
    assert declared(space).get("warmup_passes") == 0.0
