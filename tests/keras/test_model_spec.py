"""A ModelSpec says the model once, and every entry point takes it or its parts in the same way."""

import dataclasses
import inspect

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
from kbatch import ModelSpec, Recipe
from kbatch.errors import ModelError, SearchError
from kbatch.model_spec import ModelArguments

ENTRY_POINTS = (
    kbatch.HyperModel.__init__,
    kbatch.train,
    kbatch.find_max_batch,
    kbatch.max_batches,
    kbatch.noise_scale,
    kbatch.throughput,
    kbatch.memory.estimate,
)
MOST_PARAMETERS = 10


class Tunable(keras_tuner.HyperModel):
    def declare_hyperparameters(self, hp):
        hp.Int("units", 1, 4)

    def build(self, hp):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(hp.get("units"))])


class Fitting(Tunable):
    def fit(self, hp, model, *args, **kwargs):
        return model.fit(*args, **kwargs)


def trained(spec_or_build, points, **arguments):
    (x, y), validation = points
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, jit_compile=False)
    model, _ = kbatch.train(recipe, spec_or_build, x, y, validation, epochs=1, **arguments)
    return model.get_weights()[0]


def test_the_fields_are_the_arguments_by_name():
    names = [each.name for each in dataclasses.fields(ModelSpec)]
    assert names == ["build", *ModelArguments.__annotations__]


@pytest.mark.parametrize("entry_point", ENTRY_POINTS, ids=lambda each: each.__qualname__)
def test_entry_points_take_a_model_in_the_same_way(entry_point):
    code = inspect.unwrap(entry_point).__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    assert "build" in own
    assert not set(ModelArguments.__annotations__) & set(own)
    assert code.co_flags & inspect.CO_VARKEYWORDS
    mirrors_fit = entry_point is kbatch.train
    assert mirrors_fit or len([name for name in own if name != "self"]) <= MOST_PARAMETERS


@pytest.mark.parametrize("entry_point", ENTRY_POINTS, ids=lambda each: each.__qualname__)
def test_help_shows_the_models_arguments_and_their_defaults(entry_point):
    parameters = inspect.signature(entry_point).parameters
    for each in dataclasses.fields(ModelSpec)[1:]:
        assert parameters[each.name].default == each.default
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def test_help_shows_the_workers_arguments():
    for function in (kbatch.find_max_batch, kbatch.max_batches):
        parameters = inspect.signature(function).parameters
        assert parameters["timeout_seconds"].default == 600
        assert {"fresh", "on_probe"} <= set(parameters)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS[1:], ids=lambda each: each.__qualname__)
def test_a_misspelled_argument_is_named_with_the_one_meant(entry_point, raw):
    arguments, epochs = ((Recipe(),), {"epochs": 1}) if entry_point is kbatch.train else ((), {})
    with pytest.raises(TypeError, match="no argument `metrcs`: did you mean `metrics`"):
        entry_point(*arguments, raw, (4,), loss="mse", metrcs=["mae"], **epochs)


def test_a_spec_is_its_parts(points, raw):
    arguments = {"loss": "binary_crossentropy", "metrics": ["accuracy"], "seed": 3}
    of_spec = trained(ModelSpec(raw, **arguments), points)
    np.testing.assert_array_equal(of_spec, trained(raw, points, **arguments))
    assert (of_spec != trained(raw, points, **{**arguments, "seed": 4})).any()


@pytest.mark.parametrize("entry_point", ENTRY_POINTS[1:], ids=lambda each: each.__qualname__)
def test_what_a_spec_holds_is_not_said_again(entry_point, raw):
    is_train = entry_point is kbatch.train
    arguments, epochs = ((Recipe(),), {"epochs": 1}) if is_train else ((), {})
    with pytest.raises(SearchError, match="A ModelSpec must hold .* a ModelSpec and loss, seed"):
        entry_point(*arguments, ModelSpec(raw), (4,), loss="mse", seed=1, **epochs)


def test_a_tunable_hypermodel_is_taken_apart_unless_it_trains():
    spec = ModelSpec(Tunable())
    assert spec.declare is not None
    hp = keras_tuner.HyperParameters()
    spec.declare(hp)
    assert spec.build(hp).count_params() == 5
    with pytest.raises(SearchError, match="must not override fit"):
        ModelSpec(Fitting())


@pytest.mark.parametrize("wrong", ["build", None, 3])
def test_a_build_that_is_no_function_is_refused(wrong):
    with pytest.raises(ModelError, match="`build` must be a function"):
        ModelSpec(wrong)


def test_a_model_is_not_a_build_function(raw):
    with pytest.raises(ModelError, match="Pass `build`, not `build\\(\\)`"):
        ModelSpec(raw())


def test_seed_and_values_are_checked(raw):
    assert ModelSpec(raw, seed=np.int64(5)).seed == 5
    with pytest.raises(SearchError, match="`seed` must be a whole number"):
        ModelSpec(raw, seed=0.5)
    with pytest.raises(SearchError, match="`values` must be a mapping"):
        ModelSpec(raw, values=["units"])
    with pytest.raises(TypeError, match="no argument `los`: did you mean `loss`"):
        ModelSpec.of(raw, los="mse")
