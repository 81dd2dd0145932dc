"""Private names of Keras: the only module that uses them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

NAME_COUNTERS = "object_name_uids"  # keras/src/utils/naming.py, Keras 3.15.1
CALL_CONTEXT = "current_call_ctx"  # keras/src/layers/layer.py, Keras 3.15.1
# keras/src/utils/rng_utils.py and keras/src/random/seed_generator.py, Keras 3.15.1
SEEDS = ("global_random_seed", "global_seed_generator")
# keras/src/optimizers/base_optimizer.py, Keras 3.15.1; the names of sums end so
GRADIENT_SUM = "gradient_accumulator"
DECAY_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
# Methods of an optimizer. `TFOptimizer._all_reduce_sum_gradients` adds gradients up over devices
# (keras/src/backend/tensorflow/optimizer.py); `BaseOptimizer._backend_apply_gradients` accumulates
# or updates (keras/src/optimizers/base_optimizer.py), Keras 3.15.1.
REDUCTION, APPLICATION = "_all_reduce_sum_gradients", "_backend_apply_gradients"


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """Return the sums of gradients of an optimizer that accumulates; `None` for sparse ones.

    `BaseOptimizer._accumulated_gradients`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    return list(optimizer._accumulated_gradients)


def accumulated_gradient_of(optimizer: Any, variable: Any) -> Any:
    """Return the sum of gradients that an optimizer holds for one weight, as a variable.

    `BaseOptimizer._accumulated_gradients` in the order of `_get_variable_index`,
    keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    return optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]


def added_losses(layer: Any) -> list[Any]:
    """The losses that a layer itself added in its last call, without those of its weights.

    `Layer._get_own_losses`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    return list(layer._get_own_losses())


def clear_losses(layer: Any) -> None:
    """Forget the losses that a layer, and those inside of it, added in the last call.

    `Layer._clear_losses`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    layer._clear_losses()


@contextmanager
def called_in_training(layer: Any) -> Iterator[None]:
    """Have layers that are called in the `with` block train, unless the call says otherwise.

    `CallContext` of `Layer.__call__`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    from keras.src.layers.layer import CallContext

    context = CallContext(entry_layer=layer)
    context.set_value("training", True)
    before = global_attributes([CALL_CONTEXT])
    set_global_attributes({CALL_CONTEXT: context})
    try:
        yield
    finally:
        set_global_attributes(before)


def call_function(operation: Any, training: bool) -> Any:
    """The function with which a Functional model calls one of its operations.

    It passes `training` to layers that take it. `operation_fn`, keras/src/models/functional.py,
    Keras 3.15.1.
    """
    from keras.src.models.functional import operation_fn

    return operation_fn(operation, training=training)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments that a compiled model was compiled with, by name.

    `Trainer._compile_config`, keras/src/trainers/trainer.py, Keras 3.15.1.
    """
    return dict(model._compile_config.config)


def compile_config(model: Any) -> Any:
    """Return the object that holds the arguments of the last `compile`; `None` before one.

    `Trainer._compile_config`, keras/src/trainers/trainer.py, Keras 3.15.1.
    """
    return getattr(model, "_compile_config", None)


def compile_loss(model: Any) -> Any:
    """The loss that a compiled model computes of labels, predictions and weights.

    It covers all outputs, without the losses of regularizers. `Trainer._compile_loss`, in
    keras/src/trainers/trainer.py; its class is `CompileLoss`, Keras 3.15.1, trainers/compile_utils.
    """
    return model._compile_loss


def compiled_metrics(model: Any) -> list[tuple[str, Any, int, bool]]:
    """The compiled metrics that a model has measured with: log name, metric, output, weighted.

    `Trainer._compile_metrics`, keras/src/trainers/trainer.py; its class is `CompileMetrics`, Keras
    3.15.1, trainers/compile_utils.py, whose `result` names the metrics in the order of this list.
    """
    compiled = model._compile_metrics
    if compiled is None or not compiled.built:
        return []
    found = [
        (metric, place, weighted)
        for weighted, kind in enumerate((compiled._flat_metrics, compiled._flat_weighted_metrics))
        for place, several in enumerate(kind)
        for metric in (several.metrics if several else ())
    ]
    names = list(compiled.result())
    if len(names) != len(found):
        return []
    return [
        (name, metric, place, bool(weighted))
        for name, (metric, place, weighted) in zip(names, found, strict=True)
    ]


def copy_decay_exclusions(source: Any, target: Any) -> None:
    """Exclude from the weight decay of one optimizer what another excludes.

    `exclude_from_weight_decay` keeps its arguments in two attributes that are not in the config:
    keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    for name in DECAY_EXCLUSIONS:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def create_global_seed_generator() -> None:
    """Make the seed generator that layers share which were given no seed, unless it exists.

    It must not be made inside of a trace. `global_seed_generator`,
    keras/src/random/seed_generator.py, Keras 3.15.1.
    """
    from keras.src.random.seed_generator import global_seed_generator

    global_seed_generator()


def global_seed_variables() -> list[Any]:
    """The state of the seed generator that calls without a seed share; empty without one.

    `SeedGenerator.state` of the global attribute `global_seed_generator`,
    keras/src/random/seed_generator.py, Keras 3.15.1.
    """
    generator = global_attributes(SEEDS)["global_seed_generator"]
    return [] if generator is None else [generator.state]


def current_stateless_scope() -> Any:
    """The innermost `keras.StatelessScope` that is entered, or `None`.

    `get_stateless_scope`, keras/src/backend/common/stateless_scope.py, Keras 3.15.1.
    """
    from keras.src.backend.common.stateless_scope import get_stateless_scope

    return get_stateless_scope()


def flatten_layers(layer: Any) -> list[Any]:
    """A layer and all layers inside of it.

    `Layer._flatten_layers`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    return list(layer._flatten_layers())


@contextmanager
def seeds_kept(model: Any) -> Iterator[None]:
    """Put the states of a model's seed generators back behind the `with` block.

    `Layer._seed_generators`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    found = [each for layer in flatten_layers(model) for each in layer._seed_generators]
    before = [(each.state, each.state.numpy()) for each in found]
    try:
        yield
    finally:
        for state, value in before:
            state.assign(value)


def fresh_wrapper(metric: Any) -> Any:
    """A `MeanMetricWrapper` of the same function, which need not be registered.

    `MeanMetricWrapper._fn` and `_fn_kwargs`, keras/src/metrics/reduction_metrics.py, Keras 3.15.1.
    """
    return type(metric)(metric._fn, name=metric.name, dtype=metric.dtype, **metric._fn_kwargs)


def function_of_step(step: Any) -> Any:
    """The `tf.function` in a model's `train_function` or `test_function`; `None` if another's.

    `TensorFlowTrainer._make_function`, keras/src/backend/tensorflow/trainer.py, Keras 3.15.1.
    """
    held = inspect.getclosurevars(step).nonlocals if inspect.isfunction(step) else {}
    return held.get("multi_step_on_iterator")


def functional_class() -> Any:
    """The class of models that are made of inputs and outputs.

    `Functional`, keras/src/models/functional.py, Keras 3.15.1; `keras.Model(inputs, outputs)`
    returns one, but the class has no public name.
    """
    from keras.src.models.functional import Functional

    return Functional


def functional_of_sequential(model: Any) -> Any:
    """The Functional model inside of a built Sequential model, or `None`.

    `Sequential._functional`, keras/src/models/sequential.py, Keras 3.15.1.
    """
    return model._functional


def global_attributes(names: Iterable[str]) -> dict[str, Any]:
    """Return attributes of Keras' global state, such as `NAME_COUNTERS`; `None` where not set.

    `get_global_attribute`, keras/src/backend/common/global_state.py, Keras 3.15.1.
    """
    from keras.src.backend.common import global_state

    return {name: global_state.get_global_attribute(name) for name in names}


def has_schedule(optimizer: Any) -> bool:
    """Return whether an optimizer's learning rate is a schedule.

    Its property `learning_rate` computes the schedule's value and hides the schedule, which is in
    `_learning_rate` (keras/src/optimizers/base_optimizer.py, Keras 3.15.1).
    """
    import keras

    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def input_structure(functional: Any) -> Any:
    """The nested structure of symbolic inputs that a Functional model was made with, else `None`.

    `Function._inputs_struct`, keras/src/ops/function.py, Keras 3.15.1.
    """
    return getattr(functional, "_inputs_struct", None)


def is_optional_input(tensor: Any) -> bool:
    """Whether a symbolic input was made with `keras.Input(optional=True)`.

    `KerasTensor._keras_history`, keras/src/ops/node.py, Keras 3.15.1, leads to the `InputLayer`.
    """
    return getattr(tensor._keras_history.operation, "optional", False)


def lambda_function(layer: Any, field: str) -> Any:
    """Return the function of a `Lambda` layer: `function`, `output_shape` or `mask`.

    `Lambda._output_shape`, keras/src/layers/core/lambda_layer.py, Keras 3.15.1.
    """
    return layer._output_shape if field == "output_shape" else getattr(layer, field)


def policy_by_name(layer: Any) -> str | None:
    """Return the name of the dtype policy that a layer's constructor was given; `None` if none was.

    `Operation._auto_config`, keras/src/ops/operation.py, Keras 3.15.1. It is kept only where all
    arguments are numbers and texts. A layer made from a configuration was given a dict instead.
    """
    arguments = getattr(layer, "_auto_config", None)
    given = None if arguments is None else arguments.config.get("dtype")
    return given if isinstance(given, str) else None


def learning_rate_setting(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer as it was given: variable, schedule or function.

    `BaseOptimizer._learning_rate`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1; the public
    `learning_rate` returns the current value of a schedule.
    """
    return optimizer._learning_rate


def logits_of(tensor: Any) -> Any:
    """The logits that an activation has attached to its output, from which losses compute.

    `_keras_logits`, keras/src/activations/activations.py, Keras 3.15.1; `None` without any.
    """
    return getattr(tensor, "_keras_logits", None)


def loss_ids(layer: Any) -> set[int]:
    """The `id` of each loss that a layer itself has added.

    `Layer._loss_ids`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    return layer._loss_ids


def own_state(layer: Any) -> list[Any]:
    """Return the variables and seed generators that a layer has besides those of layers in it.

    `Layer._trainable_variables` and others, keras/src/layers/layer.py, Keras 3.15.1.
    """
    variables = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [*variables, *layer._seed_generators]


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has attached to a tensor, or `None`.

    `get_keras_mask`, keras/src/backend/common/masking.py, Keras 3.15.1.
    """
    from keras.src.backend.common.masking import get_keras_mask

    return get_keras_mask(tensor)


def nodes_by_depth(functional: Any) -> dict[int, list[Any]]:
    """The nodes of a Functional model by their depth; the outputs have depth 0.

    `Function._nodes_by_depth`, keras/src/ops/function.py, Keras 3.15.1.
    """
    return functional._nodes_by_depth


def output_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's outputs; empty for a model without a graph of layers.

    A `Sequential` has them in its functional twin `_functional` (keras/src/models/sequential.py,
    Keras 3.15.1).
    """
    functional = model if hasattr(model, "output_names") else getattr(model, "_functional", None)
    return tuple(getattr(functional, "output_names", ()))


def output_structure(functional: Any) -> Any:
    """The nested structure of symbolic outputs that a Functional model was made with, else `None`.

    `Function._outputs_struct`, keras/src/ops/function.py, Keras 3.15.1.
    """
    return getattr(functional, "_outputs_struct", None)


def own_trainable_variables(layer: Any) -> Sequence[Any]:
    """The trainable variables that a layer holds itself, not those of layers inside of it.

    `Layer._trainable_variables`, keras/src/layers/layer.py, Keras 3.15.1. A frozen variable stays
    among them.
    """
    return layer._trainable_variables


def passes(optimizer: Any) -> Any:
    """Return the variable that counts the passes of an optimizer.

    `BaseOptimizer._iterations`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1; the public
    `iterations` counts weight updates where an optimizer accumulates.
    """
    return optimizer._iterations


def python_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of metrics as `evaluate` does: flat, and numbers where they are one.

    `pythonify_logs`, keras/src/utils/python_utils.py, Keras 3.15.1.
    """
    from keras.src.utils.python_utils import pythonify_logs

    return dict(pythonify_logs(logs))


def set_global_attributes(values: Mapping[str, Any]) -> None:
    """Set attributes of Keras' global state; `None` removes one.

    `set_global_attribute`, keras/src/backend/common/global_state.py, Keras 3.15.1.
    """
    from keras.src.backend.common import global_state

    for name, value in values.items():
        global_state.set_global_attribute(name, value)


def set_logits(tensor: Any, logits: Any) -> None:
    """Attach logits to the output of an activation; see `logits_of`."""
    tensor._keras_logits = logits


def set_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask to a tensor, as a layer with `supports_masking` does.

    `set_keras_mask`, keras/src/backend/common/masking.py, Keras 3.15.1.
    """
    from keras.src.backend.common.masking import set_keras_mask

    set_keras_mask(tensor, mask)


def standardized_inputs(functional: Any, inputs: Any) -> list[Any]:
    """Inputs as the flat list of tensors that a Functional model runs on: checked, cast, reshaped.

    `Functional._standardize_inputs`, keras/src/models/functional.py, Keras 3.15.1.
    """
    return functional._standardize_inputs(inputs)


def tensorflow_variable(variable: Any) -> Any:
    """The `tf.Variable` behind a Keras variable; under a distribution strategy a distributed one.

    What is none of Keras', such as a counter of a loss, stands for itself.

    `Variable._value`, keras/src/backend/common/variables.py, Keras 3.15.1. Its public `value`
    casts to the policy's type inside an autocast scope, and asks a stateless scope first.
    """
    return getattr(variable, "_value", variable)


def update_weights(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Clip gradients, decay the weights and update them, as an optimizer does once an update.

    `_update_step_fn` inside `BaseOptimizer._backend_apply_gradients`,
    keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    clipped = optimizer._clip_gradients(grads)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)


def unsafe_lambdas() -> Any:
    """Return a `with` block in which functions of the user's own are made from configurations.

    `SafeModeScope`, keras/src/saving/serialization_lib.py, Keras 3.15.1.
    """
    from keras.src.saving.serialization_lib import SafeModeScope

    return SafeModeScope(False)


def calls_of_layers() -> tuple[Any, ...]:
    """Return the methods `call` of Keras' models that do nothing but call their layers."""
    import keras

    return functional_class().call, keras.Sequential.call


def build_metrics(model: Any, labels: Any) -> None:
    """Build the metrics of a model that is made of layers, for labels of known shapes.

    `Trainer._compile_metrics` and `CompileMetrics.build`, keras/src/trainers/compile_utils.py,
    Keras 3.15.1.
    """
    metrics = model._compile_metrics
    if metrics is None or metrics.built:
        return
    structure = output_structure(model)
    metrics.build(labels, model.outputs[0] if structure is None else structure)


@contextmanager
def without_symbolic_build(model: Any) -> Iterator[None]:
    """Keep a built model from being built again inside the `with` block.

    On several devices `evaluate` does so first, by the mean of the parts of the first batch, which
    fails unless they are equal. `TensorFlowTrainer._distribute_strategy`,
    keras/src/backend/tensorflow/trainer.py, Keras 3.15.1.
    """
    own, model._distribute_strategy = model._distribute_strategy, None
    try:
        yield
    finally:
        model._distribute_strategy = own


@contextmanager
def replaced_method(instance: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object inside the `with` block.

    Afterwards the object has what it had before: the method of its class, or the one of another
    such block around this one.
    """
    before = vars(instance).get(name)
    setattr(instance, name, method)
    try:
        yield
    finally:
        if before is None:
            delattr(instance, name)
        else:
            setattr(instance, name, before)


@contextmanager
def stepping(model: keras.Model, train_step: Callable[[Any], Any]) -> Iterator[None]:
    """Let a model train by another train step inside the `with` block; such blocks may be nested.

    The method `train_step` is set on the instance. The model object, its layers and its saved file
    stay the same, and the step that it had before is put back.
    """
    model.train_function = None  # a step that is compiled already would go on as before
    try:
        with replaced_method(model, "train_step", train_step):
            yield
    finally:
        model.train_function = None


def compile_as_keras(model: keras.Model, **arguments: Any) -> None:
    """Compile a model by Keras' own `compile`, also one whose class has another.

    That has run before, where the model was built: what else it sets stays.
    """
    import keras

    keras.Model.compile(model, **arguments)


def compiled_by_user(model: keras.Model) -> dict[str, Any]:
    """Return the user's compile arguments by name; empty if the model is not compiled."""
    return compile_arguments(model) if model.compiled else {}
