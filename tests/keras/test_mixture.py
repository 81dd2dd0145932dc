"""What MixUp and CutMix make of a batch."""

import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import augmentation
from kbatch.data.augmentation import CutMix, MixUp, partner
from kbatch.errors import DataError, RecipeError
from kbatch.recipe_words import AUGMENTATIONS

RNG = np.random.default_rng(0)
# every image is of one color, its number
COLORS = np.arange(64, dtype="float32")[:, None, None, None] * np.ones((1, 13, 17, 2), "float32")


def run(part, x, jit_compile=False):
    return tf.function(part.mix, jit_compile=jit_compile)(x)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_mixup_averages_each_example_with_its_partner(jit_compile):
    x = {"a": RNG.random((32, 5)), "b": RNG.random((32, 3, 4)).astype("float32")}
    mixed, share = run(MixUp(), x, jit_compile)
    for name, own in x.items():
        weight = share.numpy().reshape(-1, *[1] * (own.ndim - 1))
        expected = weight * own + (1 - weight) * np.roll(own, 1, axis=0)
        np.testing.assert_allclose(mixed[name], expected, rtol=1e-5)
        assert mixed[name].dtype == own.dtype
    assert len(set(share.numpy())) == 32


def test_whole_numbers_of_images_are_averaged_as_floats():
    x = RNG.integers(0, 255, (4, 3, 3, 1)).astype("uint8")
    mixed, share = MixUp().mix(x)
    assert mixed.dtype == tf.float32
    weight = share.numpy()[:, None, None, None]
    np.testing.assert_allclose(mixed, weight * x + (1 - weight) * np.roll(x, 1, axis=0), rtol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_share_of_cutmix_is_the_area_that_remains(jit_compile, dtype):
    mixed, share = run(CutMix(), COLORS.astype(dtype), jit_compile)
    own = mixed.numpy() == COLORS.astype(dtype)
    np.testing.assert_allclose(share, own[..., 0].mean(axis=(1, 2)), atol=1e-6)
    partners = np.roll(COLORS, 1, axis=0)
    np.testing.assert_array_equal(np.where(own, partners, mixed), partners)
    assert mixed.dtype == dtype
    assert len(set(share.numpy())) > 20


def test_cutmix_pastes_one_rectangle():
    mixed, _ = CutMix().mix(COLORS)
    pasted = (mixed.numpy() != COLORS)[..., 0]
    rows, columns = pasted.any(axis=2), pasted.any(axis=1)
    np.testing.assert_array_equal(pasted, rows[:, :, None] & columns[:, None, :])
    for line in (*rows, *columns):
        assert np.abs(np.diff(line.astype(int))).sum() <= 2


@pytest.mark.parametrize("part", [MixUp(), CutMix()])
def test_shares_are_drawn_alike_with_and_without_xla(part):
    x = np.zeros((4000, 32, 32, 1), "uint8")
    means = [float(tf.reduce_mean(run(part, x, jit)[1])) for jit in (False, True)]
    # a uniform number has a standard deviation of 0.29: 5 standard errors are 0.023
    assert abs(means[0] - means[1]) < 0.035
    if isinstance(part, MixUp):
        assert abs(means[0] - 0.5) < 0.025


def test_passes_of_one_example_are_refused():
    MixUp().check_count(2)
    with pytest.raises(DataError, match="CutMix must have two examples or more in every pass"):
        CutMix().check_count(1)


def test_one_example_is_its_own_partner():
    x = RNG.random((1, 4)).astype("float32")
    np.testing.assert_allclose(MixUp().mix(x)[0], x, rtol=1e-6)


def test_partners_keep_weights_that_are_absent():
    y = {"a": np.arange(3), "b": None}
    assert partner(y)["b"] is None
    assert list(partner(y)["a"]) == [2, 0, 1]


def test_inputs_that_cannot_be_mixed_are_refused():
    words = tf.zeros((4, 7), "int32")
    with pytest.raises(DataError, match="averaged: floats.*int32 of shape .4, 7."):
        MixUp().mix(words)
    with pytest.raises(DataError, match="CutMix must have images"):
        CutMix().mix(tf.zeros((4, 7)))
    with pytest.raises(DataError, match="CutMix must have images"):
        CutMix().mix({"image": tf.zeros((4, 8, 8, 3))})


def test_built_in_pipelines_are_those_that_recipes_name():
    assert set(AUGMENTATIONS) <= set(augmentation.augmentation_names())
    mixing = {name for name in AUGMENTATIONS if augmentation.mixing([name])}
    assert mixing == {"mixup", "cutmix", "flip_shift_mixup", "flip_shift_cutmix"}
    kinds = [type(part).__name__ for part in augmentation.layers("flip_shift_cutmix")]
    assert kinds == ["RandomFlip", "RandomShift", "CutMix"]


def test_a_pipeline_mixes_once():
    augmentation.register_augmentation("test_twice", lambda: [MixUp(), CutMix()])
    with pytest.raises(RecipeError, match="at most once. Received: test_twice with MixUp, CutMix"):
        augmentation.layers("test_twice")
