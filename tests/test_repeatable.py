"""Models that recompute refuses because an operation of them cannot be run twice."""

import keras
import pytest
import tensorflow as tf
from recompute_plans import cut, sequence

from kbatch import recompute
from kbatch.errors import RecomputeError

pytestmark = pytest.mark.usefixtures("own_policy")


class Assigning(keras.layers.Layer):
    """Writes a trainable weight in `call`, as SpectralNormalization does."""

    def build(self, shape):
        self.scale = self.add_weight(shape=())

    def call(self, inputs):
        self.scale.assign(self.scale * 0.5)
        return inputs * self.scale


class Unrepeatable(keras.layers.Layer):
    """Draws other numbers each time it is run."""

    def call(self, inputs):
        return inputs * tf.random.uniform(())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: sequence(Assigning()), "assigns a trainable weight"),
        (
            lambda: sequence(keras.layers.SpectralNormalization(keras.layers.Dense(8))),
            "SpectralNormalization",
        ),
        (lambda: sequence(Unrepeatable()), "RandomUniform"),
        (
            lambda: keras.Sequential(
                [
                    keras.Input(batch_shape=(4, 6, 8)),
                    keras.layers.LSTM(4, stateful=True),
                    keras.layers.Dense(4),
                ]
            ),
            "stateful",
        ),
    ],
)
def test_what_cannot_be_run_twice_is_refused(build, says):
    model = build()
    for refused in (
        lambda: recompute.apply(model, cut(model, 2)),
        lambda: recompute.plan(model, 4, "manual", layers=[model.layers[-2].name]),
    ):
        with pytest.raises(RecomputeError, match=says):
            refused()
    assert "call" not in vars(model)
    recompute.apply(model, recompute.plan(model, 4, "none"))


def test_planning_refuses_what_cannot_be_run_twice_if_it_were():
    model = sequence(*(keras.layers.Dense(64, "tanh") for _ in range(8)), Unrepeatable())
    for refused in (lambda: recompute.plan(model, 64), lambda: recompute.front(model, 64)):
        with pytest.raises(RecomputeError, match="RandomUniform"):
            refused()
    model.trainable = False
    plan = recompute.plan(model, 64)
    assert not plan.recomputes
    assert recompute.front(model, 64)[-1].peak_bytes == plan.peak_bytes
    recompute.apply(model, plan)
