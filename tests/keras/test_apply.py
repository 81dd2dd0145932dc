"""A plan applied to a model and taken off again changes nothing but its memory."""

import random

import keras
import numpy as np
import pytest
import recompute_models
import tensorflow as tf
from recompute_plans import compiled, cut, sequence

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute import _measure
from kbatch.recompute._apply import batch_size_of, restored

pytestmark = pytest.mark.usefixtures("own_policy")


def test_a_plan_changes_nothing_but_training(tmp_path):
    model, (x, y) = compiled(recompute_models.residual)

    def summary():
        lines = []
        model.summary(print_fn=lines.append)
        return lines

    before = (
        model.evaluate(x, y, verbose=0),
        model.predict(x, verbose=0),
        model.to_json(),
        [v.path for v in model.variables],
        summary(),
    )
    plan = cut(model)
    recompute.apply(model, plan)
    assert recompute.applied(model) == plan
    now = (
        model.evaluate(x, y, verbose=0),
        model.predict(x, verbose=0),
        model.to_json(),
        [v.path for v in model.variables],
        summary(),
    )
    assert now[0] == before[0]
    assert np.array_equal(now[1], before[1])
    assert now[2:] == before[2:]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded.predict(x, verbose=0), before[1])
    assert recompute.applied(loaded) is None
    assert recompute.applied(keras.models.clone_model(model)) is None
    model.fit(x, y, verbose=0)
    after = model.predict(x, verbose=0)
    model.export(tmp_path / "saved", verbose=False)
    exported = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(exported.serve(x), after, rtol=1e-5, atol=1e-6)
    recompute.remove(model)
    recompute.remove(model)
    assert recompute.applied(model) is None
    assert "call" not in vars(model)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.parametrize(
    "build",
    [Subclassed, lambda: keras.Sequential([keras.layers.Dense(4)])],
    ids=["subclassed", "not built"],
)
def test_what_hides_its_graph_is_refused(build):
    model = build()
    with pytest.raises(RecomputeError, match="hide the order"):
        recompute.apply(model, cut(sequence(), 2))
    with pytest.raises(RecomputeError, match="hide the order"):
        recompute.plan(model, 4)


def test_what_is_refused_leaves_the_plan_before():
    model = sequence(keras.layers.Dropout(0.5))
    before = cut(model, 2)
    recompute.apply(model, before)
    with pytest.raises(RecomputeError, match="one of 2 operations for a model of 3"):
        recompute.apply(model, cut(sequence(), 2))
    assert vars(model)["call"].plan == before
    with pytest.raises(RecomputeError, match="must be a recompute.Plan. Received: 'minimal'"):
        recompute.apply(model, "minimal")
    for of in (recompute.remove, recompute.applied):
        with pytest.raises(RecomputeError, match=r"a keras\.Model\. Received: 5"):
            of(5)


def test_planning_and_applying_need_no_config_and_draw_nothing():
    class NoConfig(keras.layers.Layer):
        def __init__(self, own):
            super().__init__()
            self.own = own

        def call(self, inputs):
            return inputs * self.own

    keras.utils.set_random_seed(5)
    model = sequence(NoConfig(2.0), keras.layers.Dropout(0.5))

    def draws():
        tensors = tf.random.uniform(()), keras.random.uniform(())
        return random.random(), np.random.rand(), *map(float, tensors)

    keras.utils.set_random_seed(5)
    expected = draws()
    keras.utils.set_random_seed(5)
    recompute.apply(model, recompute.plan(model, 8, "sqrt"))
    assert draws() == expected


def test_a_plan_of_another_model_is_refused():
    one, other = (
        sequence(keras.layers.Dense(8)),
        sequence(keras.layers.Dropout(0.5), keras.layers.Dense(8)),
    )
    with pytest.raises(RecomputeError, match="one of 3 operations for a model of 4"):
        recompute.apply(other, cut(one, 2))
    with pytest.raises(RecomputeError, match="a segment from"):
        recompute.apply(sequence(keras.layers.Dropout(0.5)), cut(one, 2))
    with pytest.raises(RecomputeError, match="must be compiled"):
        recompute.verify(one, cut(one, 2), np.zeros((2, 6, 8)))


@keras.saving.register_keras_serializable("kbatch_tests")
class OnlyForward(keras.layers.Layer):
    """Has no gradient, which nobody notices before a step is traced backward."""

    def call(self, inputs):
        @tf.custom_gradient
        def pass_on(x):
            def gradient(upstream):
                raise ArithmeticError("no gradient here")

            return tf.identity(x), gradient

        return pass_on(inputs)


def test_apply_refuses_an_untraceable_segment_by_name():
    model = sequence(keras.layers.Dense(8), OnlyForward(name="only_forward"))
    with pytest.raises(
        RecomputeError,
        match=(
            r"no gradient here.*in the segment from '.*' to "
            r"'only_forward'.*train without recompute"
        ),
    ):
        recompute.apply(model, cut(model, 2))
    assert recompute.applied(model) is None


def test_models_that_are_built_alike_share_one_trace(monkeypatch):
    traced = []
    of = tf.GradientTape
    monkeypatch.setattr(
        tf, "GradientTape", lambda *arguments, **named: traced.append(1) or of(*arguments, **named)
    )

    def apply(width):
        traced.clear()
        model = sequence(keras.layers.Dense(width), keras.layers.Dropout(0.123))
        recompute.apply(model, cut(model, 2))
        return len(traced)

    assert [apply(8) > 0, apply(8), apply(9) > 0] == [True, 0, True]


def test_applying_inside_fit_is_refused_and_fit_goes_on():
    model, (x, y) = compiled(recompute_models.hiding)
    plan, said = cut(model, 2), []

    def change(batch, logs=None):
        for ask in (lambda: recompute.apply(model, plan), lambda: recompute.remove(model)):
            try:
                ask()
            except RecomputeError as error:
                said.append(str(error))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=change)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[callback])
    assert len(said) == 2  # of two batches; there is nothing to remove
    recompute.apply(model, plan)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[callback])
    assert len(said) == 6
    assert all("in the middle of one. Do it before `fit`" in each for each in said)
    assert recompute.applied(model) == plan


def test_an_empty_batch_is_refused_in_words():
    model, (x, y) = compiled(recompute_models.hiding)
    plan = cut(model, 2)
    asks = (
        lambda: recompute.verify(model, plan, x[:0], y[:0]),
        lambda: recompute.best_plan(model, x[:0], y[:0]),
        lambda: recompute.measure(model, plan, []),
    )
    for ask in asks:
        with pytest.raises(
            RecomputeError, match=r"at least one example\. Received: inputs of shape"
        ):
            ask()


def test_verifying_often_warns_of_no_retracing(caplog):
    model, data = compiled(recompute_models.hiding)
    tf.get_logger().propagate = True
    for _ in range(4):
        recompute.verify(model, cut(model, 2), *data)
    assert "retracing" not in caplog.text


def test_what_plain_training_does_not_repeat_is_said(monkeypatch):
    trained = iter([3.0, 3.5, 3.25, 3.0, 3.5, 3.0])

    def train(*arguments):
        loss = next(trained)
        return _measure._Training([loss], [], [], [])

    monkeypatch.setattr(_measure, "_train", train)
    model, data = compiled(recompute_models.residual)
    report = recompute.verify(model, cut(model), *data)
    assert not report.exact
    assert report.plain.loss == 0.25
    assert str(report).endswith(
        "Plain training, repeated, differs too: loss 0.25, gradients 0, weights 0, state 0."
    )
    report = recompute.verify(model, cut(model), *data)
    assert report.plain.exact
    assert "repeated" not in str(report)


X, Y = np.ones((5, 3), "float32"), np.ones((5, 1), "float32")


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    return model


def values(model):
    return [np.array(each) for each in [*model.variables, *model.optimizer.variables]]


def test_weights_optimizer_and_plan_are_put_back(model):
    model.train_on_batch(X, Y)
    plan = recompute.plan(model, 5, "manual", layers=[model.layers[0].name])
    recompute.apply(model, plan)
    before, filters = values(model), list(tf.get_logger().filters)
    with restored(model) as restore:
        assert recompute.applied(model) is None
        for _ in range(2):
            model.train_on_batch(X, Y)
            changed = zip(before, values(model), strict=True)
            assert not all(np.array_equal(one, other) for one, other in changed)
            restore()
            assert all(map(np.array_equal, before, values(model)))
        model.train_on_batch(X, Y)
    assert all(map(np.array_equal, before, values(model)))
    assert recompute.applied(model) == plan
    assert list(tf.get_logger().filters) == filters


def test_an_error_inside_restores_too(model):
    before = values(model)[:4]
    with pytest.raises(ZeroDivisionError), restored(model):
        model.train_on_batch(X, Y)
        raise ZeroDivisionError
    assert all(map(np.array_equal, before, values(model)[:4]))


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(RecomputeError, match="must be compiled"), restored(model):
        pytest.fail("must not begin")


@pytest.mark.parametrize("x", [X, {"a": X, "b": X[:, 0]}, [None, X]], ids=["one", "dict", "list"])
def test_a_batch_has_as_many_examples_as_its_first_axis(x):
    assert batch_size_of(x) == 5


@pytest.mark.parametrize(
    "x", [[], X[:0], np.float32(1.0), {"a": X, "b": X[:0]}], ids=["none", "empty", "one", "part"]
)
def test_a_batch_without_examples_is_refused(x):
    with pytest.raises(RecomputeError, match="at least one example"):
        batch_size_of(x)
