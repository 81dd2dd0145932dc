import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import augmentation
from kbatch.errors import RecipeError

IMAGES = np.random.default_rng(0).integers(0, 255, (8, 20, 24, 3)).astype("uint8")


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", ["flip", "flip_shift", "flip_shift_contrast"])
def test_image_pipelines_keep_shape_and_differ_from_call_to_call(name, jit_compile):
    layers = augmentation.layers(name)

    @tf.function(jit_compile=jit_compile)
    def run(images):
        for layer in layers:
            images = layer(images, training=True)
        return images

    calls = [run(IMAGES).numpy() for _ in range(6)]
    assert {call.shape for call in calls} == {IMAGES.shape}
    # Eight flips are the same as those before once in 256 times; six calls alike are no accident.
    assert len({call.tobytes() for call in calls}) > 1


def test_each_image_shifts_by_its_own_amount_and_repeats_edges():
    moved = augmentation.RandomShift(0.2)(IMAGES.astype("float32"), training=True).numpy()

    def shift_of(index):
        for down in range(-4, 5):
            for right in range(-4, 5):
                rows, columns = (
                    np.clip(np.arange(20) + down, 0, 19),
                    np.clip(np.arange(24) + right, 0, 23),
                )
                if np.array_equal(IMAGES[index][rows][:, columns], moved[index]):
                    return down, right
        return None

    shifts = [shift_of(index) for index in range(8)]
    assert None not in shifts
    assert len(set(shifts)) > 1


def test_none_has_no_layers_and_unknown_names_are_refused():
    assert augmentation.layers("none") == []
    with pytest.raises(RecipeError, match="must be one of none, flip"):
        augmentation.layers("unheard_of")


def test_a_pipeline_is_registered_once_under_its_name():
    import keras

    def pipeline():
        return [keras.layers.GaussianNoise(0.1)]

    augmentation.register_augmentation("test_noise", pipeline)
    assert [type(layer).__name__ for layer in augmentation.layers("test_noise")] == [
        "GaussianNoise"
    ]
    with pytest.raises(RecipeError, match="must be new"):
        augmentation.register_augmentation("flip", pipeline)
