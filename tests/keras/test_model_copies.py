"""Models made again from what Keras knows of them, and the weights that they begin with."""

import keras
import numpy as np
import pytest
from keras import layers

from kbatch.errors import ModelError
from kbatch.models.policies import policy_scope
from kbatch.models.start import seed_scope
from kbatch.standin.configuration import custom_objects, noting
from kbatch.standin.copies import Copies, SameModel, copies_of

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
FACTOR = 3.0


def compiled(model):
    model.compile("adam", "mse", metrics=["mae"])
    return model


def dense(**options):
    return compiled(
        keras.Sequential([layers.Input((8,)), layers.Dense(16), layers.Dense(1, **options)])
    )


def branches():
    inputs = keras.Input((8,))
    shared = layers.Dense(8, activation="relu")
    x = layers.concatenate([shared(inputs), shared(-inputs)])
    x = layers.Lambda(lambda t: keras.ops.tanh(t) * FACTOR)(x)  # which reads a global
    return compiled(keras.Model(inputs, layers.Dense(1)(x)))


class Two(keras.Model):
    def __init__(self, units, head):
        super().__init__()
        self.first, self.head = layers.Dense(units), head

    def call(self, x):
        return self.head(self.first(x))


def subclassed():
    model = compiled(Two(4, layers.Dense(1)))
    model(X)
    return model


MODELS = {"sequential": dense, "branches": branches, "subclassed": subclassed}


@pytest.fixture(autouse=True)
def arguments_noted():
    with noting():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_with_the_same_weights_computes_the_same(name):
    model = MODELS[name]()
    copy = Copies(model, X)()
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(copy(X), model(X), rtol=1e-6)
    assert copy is not model
    assert not {id(each) for each in copy.variables} & {id(each) for each in model.variables}


@pytest.mark.parametrize("name", MODELS)
def test_copies_follow_the_policy_of_a_recipe(name):
    build = Copies(MODELS[name](), X)
    with policy_scope("mixed_bfloat16", "float32"):
        copy = build()
    found = {each.dtype_policy.name for each in copy.layers if each.weights}
    assert found == {"mixed_bfloat16"}


def test_a_pinned_layer_keeps_its_policy():
    with policy_scope("mixed_bfloat16", "float32"):
        build = Copies(dense(dtype="float32"))
    with policy_scope("float32", "mixed_bfloat16"):
        assert {each.dtype_policy.name for each in build().layers} == {"float32"}
    with policy_scope("mixed_bfloat16", "float32"):
        assert [each.dtype_policy.name for each in build().layers] == ["mixed_bfloat16", "float32"]


def test_a_layer_pinned_to_the_global_policy_keeps_it():
    with policy_scope("float32", "float32"):
        build = Copies(dense(dtype="float32"))
    with policy_scope("mixed_bfloat16", "float32"):
        assert [each.dtype_policy.name for each in build().layers] == ["mixed_bfloat16", "float32"]


def test_fresh_weights_follow_the_seed():
    build = Copies(dense())
    drawn = []
    for seed in (1, 1, 2):
        with seed_scope(seed):
            drawn.append(build().get_weights()[0])
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not build.start.values


def test_one_update_makes_weights_trained():
    model = dense()
    model.fit(X[:4], X[:4, :1], epochs=1, verbose=0)
    build = Copies(model)
    for mine, other in zip(model.get_weights(), build().get_weights(), strict=True):
        assert np.array_equal(mine, other)
    assert len(build.start.values) == build.start.count


def test_one_update_is_told_after_compiling_anew():
    model = dense()
    model.fit(X[:4], X[:4, :1], epochs=1, verbose=0)
    assert len(Copies(compiled(model)).start.values) == 4  # biases are no zeros any more


def test_a_loaded_base_stays_and_a_new_head_is_drawn():
    base = keras.Sequential([layers.Input((8,)), layers.Dense(32, use_bias=False)], name="base")
    base.layers[0].kernel.assign(1.1 * base.layers[0].kernel)  # what a file may hold
    base.trainable = False
    inputs = keras.Input((8,))
    model = compiled(keras.Model(inputs, layers.Dense(1)(base(inputs))))
    build = Copies(model)
    with seed_scope(5):
        copy = build()
    assert build.start.names == (base.layers[0].kernel.path,)
    assert np.array_equal(copy.get_weights()[0], model.get_weights()[0])
    assert not np.array_equal(copy.layers[-1].kernel, model.layers[-1].kernel)
    assert [len(each.trainable_variables) for each in (copy, model)] == [2, 2]
    assert "1 of 3 variables" in build.start.sentence


def test_adapted_layers_keep_what_they_have_seen():
    words = layers.TextVectorization(10, output_sequence_length=3)
    words.adapt(["a b", "a c"])
    model = keras.Sequential(
        [layers.Input((), dtype="string"), words, layers.Embedding(10, 2), layers.Flatten()]
    )
    copy = Copies(compiled(model))()
    assert copy.layers[0].get_vocabulary() == words.get_vocabulary()
    norm = layers.Normalization()
    norm.adapt(5 * X + 2)
    copy = Copies(compiled(keras.Sequential([layers.Input((8,)), norm])))()
    np.testing.assert_allclose(copy(X), norm(X), rtol=1e-6)


def test_compile_arguments_are_kept_but_not_shared():
    model = dense()
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.8), "mae", metrics=["mse"])
    copy = Copies(model)()
    assert copy.optimizer is not model.optimizer
    assert copy.optimizer.get_config() == model.optimizer.get_config()
    assert copy.loss == "mae"


def test_without_noted_arguments_the_model_itself_is_used():
    model = subclassed()
    vars(model).pop("_kbatch_made_with")
    build = copies_of(model, X)
    assert isinstance(build, SameModel)
    assert build() is model
    assert "Two" in build.why


def test_an_attribute_set_later_makes_no_silent_copy():
    model = subclassed()
    model.gamma = 2.0
    build = copies_of(model, X)
    assert isinstance(build, SameModel)
    assert "gamma" in build.why


def test_two_classes_of_one_name_are_refused():
    def layer(scale):
        class Scale(layers.Layer):
            def call(self, x):
                return x * scale

        return Scale()

    model = keras.Sequential([layers.Input((8,)), layer(1.0), layer(2.0)])
    with pytest.raises(ModelError, match="two of the name Scale"):
        custom_objects(model)


class Bare(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(x)


def test_a_subclass_without_further_arguments_is_made_again():
    model = compiled(Bare())
    model(X)
    copy = Copies(model, X)()
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(copy(X), model(X), rtol=1e-6)
