"""The networks of the studies: the case study's, and ResNet50."""

from __future__ import annotations

from collections.abc import Callable

import keras

from kbatch.case_study.models import MODELS


def resnet50(image_size: int) -> keras.Model:
    """Return ResNet50 with random weights and one output for two classes.

    Args:
        image_size: Integer, height and width of the images, whose pixels run from 0 to 255.
    """
    inputs = keras.Input((image_size, image_size, 3))
    body = keras.applications.ResNet50(
        include_top=False, weights=None, pooling="avg", input_shape=(image_size, image_size, 3)
    )
    features = body(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(features)
    return keras.Model(inputs, outputs, name="resnet50")


NETWORKS: dict[str, Callable[[int], keras.Model]] = {**MODELS, "resnet50": resnet50}


def network(name: str, image_size: int) -> keras.Model:
    """Return the network of a name.

    Args:
        name: String, one of `NETWORKS`.
        image_size: Integer, height and width of the images.
    """
    return NETWORKS[name](image_size)
