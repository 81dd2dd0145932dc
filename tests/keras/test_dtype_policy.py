"""Which policies there are, and what they exclude."""

import keras
import pytest

from kbatch import Recipe, Space
from kbatch.errors import ModelError, RecipeError, SpaceError
from kbatch.models.maker import ModelMaker
from kbatch.models.policies import policy_scope
from kbatch.recipe_words import POLICIES, policy_of_keras


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_set_and_restored(policy):
    with policy_scope(policy, "float32"):
        assert keras.config.dtype_policy().name == policy_of_keras(policy)
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lamb"])
def test_float16_excludes_the_adam_family(optimizer):
    words = "without the Adam family"
    with pytest.raises(RecipeError, match=f"{words}.*{optimizer}"):
        Recipe(optimizer=optimizer, policy="float16")
    with pytest.raises(SpaceError, match=f"{words}.*{optimizer}"):
        Space(policy=("float32", "float16"), optimizer=("sgd", optimizer))
    Recipe(optimizer="sgd", policy="float16")
    Recipe(optimizer="lars", policy="float16")
    Space(policy=("float32", "float16"), optimizer=("sgd", "lars"))


@pytest.mark.parametrize("training", ["sam:0.05", "proximal:0.1"])
def test_float8_excludes_several_gradients_per_update(training):
    with pytest.raises(RecipeError, match=f"plain training.*{training}"):
        Recipe(policy="float8", training=training)
    with pytest.raises(SpaceError, match=f"plain training.*{training}"):
        Space(policy=("float8",), training=("plain", training))
    Recipe(policy="float8")


@pytest.fixture(autouse=True)
def restored():
    yield
    keras.config.set_dtype_policy("float32")


def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])


@pytest.mark.parametrize("own", ["float8_from_float32", "int8_from_float32", "bfloat16"])
def test_a_global_policy_that_no_recipe_can_name_is_refused(own):
    maker = ModelMaker(build, own_policy=own)
    with pytest.raises(ModelError, match=f"float32, mixed_float16, .*float16. Received: {own}"):
        maker.baseline(Recipe())


def test_the_baseline_takes_a_global_policy_of_float16():
    maker = ModelMaker(build, own_policy="float16")
    assert maker.baseline(Recipe(optimizer="sgd")).policy == "float16"
    with pytest.raises(RecipeError, match="without the Adam family"):
        maker.baseline(Recipe())
