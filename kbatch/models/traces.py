"""Traces: compiled steps of a search that serve each training of the same graph."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.evaluation import loop_of_step
from kbatch.models.scopes import KEPT_STEP, drawn_from
from kbatch.recipe import Recipe
from kbatch.recipe_words import AUGMENTATIONS
from kbatch.runtime import device, device_memory, keras_private, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory

Make = Callable[[], keras.Model]
MOST_GRAPHS = 8  # models that are kept at once; the one that was used least recently goes
SHARE_OF_MEMORY = 0.05  # of the device, that the kept models may take together
# What of a recipe may differ between trainings whose parts are equal: streams, callbacks and the
# variables of the optimizer hold it, or the configs of model and optimizer tell it.
OUTSIDE = {
    "augmentation",
    "batch_size",
    "micro_batch_size",
    "learning_rate",
    "label_smoothing",
    "warmup_updates",
    "schedule",
    "ema",
    "optimizer",
    "weight_decay",
    "momentum",
    "beta_2",
    "clip_norm",
    "policy",
    "normalization",
    "jit_compile",
}
# Keras' layers whose whole graph stands in their config and variables.
PLAIN_LAYERS = tuple(
    f"keras.src.layers.{part}."
    for part in (
        "activations",
        "attention",
        "convolutional",
        "core",
        "merging",
        "normalization",
        "pooling",
        "preprocessing.image_preprocessing",
        "preprocessing.rescaling",
        "regularization",
        "reshaping",
        "rnn",
    )
)
# Whose function no config tells, and which draws by Python's generator while it is traced.
NOT_PLAIN = (keras.layers.Lambda, keras.layers.AugMix)
PLAIN_MODELS = ("keras.src.models.functional", "keras.src.models.sequential", "keras.src.ops.")
# Methods that make the graph; who sets one on an instance makes another.
OF_GRAPH = (
    *("call", "compute_loss", "compute_mask", "train_step", "test_step"),
    *("apply", "apply_gradients", "update_step", "minimize"),
)
KERAS = ("keras.src.", "kbatch.models.optimizers")
CHANGING = ("_called", "built", "name")  # attributes of a part that tell nothing of its graph
PLAIN_VALUES = (bool, int, float, str, type(None))


# What a model may do in its own way, and then hand other labels to the metrics than it was given.
OF_METRICS = ("train_step", "compute_loss", "compute_metrics")


def steps_by_shapes(model: keras.Model) -> bool:
    """Tell whether shapes alone tell what the first training step of a model creates.

    TensorFlow traces a step twice if the first trace creates variables: those of the metrics and of
    the optimizer. Nothing of the user's may run to make them before: a `tf.function` would keep
    what it was traced to there.
    """
    if any(name in vars(model) or _overrides(model, name) for name in OF_METRICS):
        return False
    if model.run_eagerly or model.distribute_strategy.num_replicas_in_sync > 1:
        return False
    is_made_of_layers = type(model).call in keras_private.calls_of_layers()
    return is_made_of_layers and all(each.built for each in keras_private.flatten_layers(model))


def make_step_ready(model: keras.Model, batch: Any) -> None:
    """Build the metrics and the optimizer of a model that `steps_by_shapes`.

    Args:
        model: Compiled `keras.Model`.
        batch: What one step takes, with `tf.TensorSpec`s for its tensors.
    """
    _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return
    try:
        keras_private.build_metrics(model, y)
    except (TypeError, ValueError):  # the first step says it, with the labels themselves
        return
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _overrides(model: keras.Model, name: str) -> bool:
    return getattr(type(model), name) is not getattr(keras.Model, name)


class _OwnPartError(Exception):
    """A part of a model whose graph its config does not tell."""


class Traces:
    """Models of a search whose compiled steps later trainings of the same graph use.

    The model of a trial stays its user's: another one, made in the same way, trains in its place,
    from its values, and gives them back. Two models have the same graph if Keras' own classes alone
    make it, and all their configs are equal but for the learning rate.
    """

    def __init__(self) -> None:
        self._kept: dict[str, keras.Model] = {}

    @contextmanager
    def lent(self, model: keras.Model, recipe: Recipe, make: Make) -> Iterator[keras.Model]:
        """Give a model to train in the place of another; afterwards that has what was trained.

        Args:
            model: The compiled model of a training.
            recipe: `Recipe` of the training.
            make: Function that makes an equal model; called once for each graph.
        """
        graph = graph_of(model, recipe)
        if graph is None or not self._has_room(model):
            self._make_room()
            yield model
            return
        own = self._kept.pop(graph, None) or _made(make)
        # `build` may return one model, or draw another each time that it is called
        if own is None or _shares_variables(model, own) or not _fits(own, model, recipe, graph):
            self._make_room()
            yield model
            return
        vars(own).setdefault(KEPT_STEP, [])
        _copy_state(model, own)
        yield own
        _copy_state(own, model)
        _copy_of_fit(own, model)
        # A callback may have changed the model, or what it drew from may be no variable of it.
        if graph_of(own, recipe) == graph and _reads_itself_alone(own):
            self._kept[graph] = own
            while len(self._kept) > MOST_GRAPHS:
                del self._kept[next(iter(self._kept))]

    def __len__(self) -> int:
        return len(self._kept)

    def forget(self) -> None:
        """Free all models that are kept."""
        self._kept.clear()

    def _make_room(self) -> None:
        """Free the kept models where bytes count, before a model trains that could not begin anew.

        Its running out of memory would be an outcome, and its peak bytes a measurement.
        """
        if device_memory.bytes_now() is not None:
            self.forget()

    def _has_room(self, model: keras.Model) -> bool:
        """Whether one model more may be kept."""
        limit = device_memory.cpu_limit() or device_memory.most_bytes()
        kept = sum(_state_bytes(each) for each in self._kept.values())
        return kept + _state_bytes(model) <= SHARE_OF_MEMORY * limit


def graph_of(model: keras.Model, recipe: Recipe) -> str | None:
    """Return a text that is equal for models of one graph; `None` if that cannot be told."""
    if device.replicas() > 1 or model.run_eagerly or not _steps_plainly(recipe):
        return None
    if not all(layer.built for layer in keras_private.flatten_layers(model)):
        return None  # the first batch makes its variables
    if _is_distributed(model):
        return None
    try:
        parts = {
            "process": _settings_of_process(),
            "model": _model_config(model),
            "variables": [_described(each) for each in _variables(model)],
            "compiled": {
                name: _said(part)
                for name, part in keras_private.compiled_by_user(model).items()
                if name != "optimizer"
            },
            "optimizer": _optimizer_config(model.optimizer),
            "jit_compile": model.jit_compile,
            "augmentation": recipe.augmentation,
        }
        return json.dumps(parts, sort_keys=True)
    except (_OwnPartError, TypeError, ValueError, NotImplementedError):
        return None


def _is_distributed(model: keras.Model) -> bool:
    """Whether a strategy made the variables of a model, even for one device."""
    variables = map(keras_private.tensorflow_variable, model.variables)
    return any(isinstance(each, tf.distribute.DistributedValues) for each in variables)


def _steps_plainly(recipe: Recipe) -> bool:
    """Whether a recipe trains by Keras' own step, behind at most a pipeline of kbatch's."""
    inside = [field.name for field in dataclasses.fields(recipe) if field.name not in OUTSIDE]
    return (
        recipe.accumulation_steps == 1
        and recipe.augmentation in AUGMENTATIONS
        and all(getattr(recipe, name) == getattr(Recipe, name) for name in inside)
    )


def _settings_of_process() -> list[Any]:
    """The settings of Keras that stand in a graph."""
    config = keras.config
    flash = config.is_flash_attention_enabled()
    return [config.floatx(), config.epsilon(), config.image_data_format(), flash]


def _model_config(model: keras.Model) -> Any:
    numbers = {id(variable): number for number, variable in enumerate(_variables(model))}
    layers = [_layer_settings(layer, numbers) for layer in keras_private.flatten_layers(model)]
    config = model.get_config()
    _check_config(config)
    return [type(model).__name__, config, layers]


def _layer_settings(layer: Any, numbers: Mapping[int, int]) -> dict[str, Any]:
    """The settings of a layer without a tensor or table of its own, and its variables' numbers."""
    kind = f"{type(layer).__module__}."
    if any(name in vars(layer) for name in OF_GRAPH):
        raise _OwnPartError(layer.name)
    if isinstance(layer, keras.metrics.Metric):
        return {}  # `compile` says them
    if isinstance(layer, keras.Model) and kind.startswith(PLAIN_MODELS):
        return {}  # its layers are looked at
    held = any(isinstance(value, tf.Tensor) for value in vars(layer).values())
    if held or not kind.startswith(PLAIN_LAYERS) or isinstance(layer, NOT_PLAIN):
        raise _OwnPartError(type(layer).__name__)
    if getattr(layer, "stateful", False):
        raise _OwnPartError("a state that stays from one batch to the next")
    own = {name: value for name, value in vars(layer).items() if id(value) in numbers}
    return {**_settings(layer), "own": {name: numbers[id(each)] for name, each in own.items()}}


def _settings(part: Any) -> dict[str, Any]:
    """The plain values and the functions that a part holds, also those that no config tells."""
    found: dict[str, Any] = {}
    for name, value in vars(part).items():
        if name in OF_GRAPH:
            raise _OwnPartError(name)
        if callable(value):
            found[name] = _name(value)
        elif isinstance(value, PLAIN_VALUES) and value is not None and name not in CHANGING:
            found[name] = value
    return found


def _name(part: Any) -> list[str]:
    """The name of a function, or of the class of an object, which must be Keras' own."""
    kind = part if hasattr(part, "__qualname__") else type(part)
    if not f"{kind.__module__}.".startswith(KERAS):
        raise _OwnPartError(str(kind.__qualname__))
    return [str(kind.__module__), str(kind.__qualname__)]


def _check_config(part: Any) -> None:
    """Refuse a config that names a class or a function that is not Keras' own."""
    if isinstance(part, Mapping):
        module = str(part.get("module") or "keras")
        if not f"{module}.".startswith("keras.") or part.get("class_name") in (
            "function",
            "__lambda__",
            "__numpy__",
        ):
            raise _OwnPartError(str(part.get("class_name")))
        for value in part.values():
            _check_config(value)
    elif isinstance(part, (list, tuple)):
        for value in part:
            _check_config(value)


def _said(part: Any) -> Any:
    """Losses, metrics and other arguments of `compile` as JSON can hold them."""
    if isinstance(part, PLAIN_VALUES):
        return part
    if isinstance(part, Mapping):
        return {str(name): _said(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_said(value) for value in part]
    config = part.get_config() if hasattr(part, "get_config") else None
    _check_config(config)
    held = _settings(part) if isinstance(part, (keras.losses.Loss, keras.metrics.Metric)) else {}
    return [_name(part), config, held, vars(part).get("_fn_kwargs") if held else None]


def _optimizer_config(optimizer: Any) -> Any:
    """The config of an optimizer without a learning rate that is a number: a variable holds it."""
    if any(name in vars(optimizer) for name in keras_private.DECAY_EXCLUSIONS):
        raise _OwnPartError("weights that do not decay")
    config = optimizer.get_config()
    _check_config(config)
    del config["name"]  # Keras numbers it
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        config["inner_optimizer"] = _optimizer_config(inner)
    elif not keras_private.has_schedule(optimizer):
        del config["learning_rate"]
    return [_name(optimizer), config, _settings(optimizer)]


def _variables(model: keras.Model) -> list[Any]:
    """The variables of a model but those of its metrics, which Keras resets."""
    of_metrics = {id(each) for metric in model.metrics for each in metric.variables}
    return [each for each in model.variables if id(each) not in of_metrics]


def _described(variable: Any) -> list[Any]:
    held = [_said(getattr(variable, name, None)) for name in ("regularizer", "constraint")]
    own = [variable.path, list(variable.shape), str(variable.dtype), bool(variable.trainable)]
    return [*own, *held]


def _state(model: keras.Model) -> list[Any]:
    """All variables of a model and its optimizer, which is built if it was not."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*_variables(model), *model.optimizer.variables]


def _copy_state(source: keras.Model, target: keras.Model) -> None:
    for value, variable in zip(_state(source), _state(target), strict=True):
        variable.assign(value)


def _made(make: Make) -> keras.Model | None:
    """Make a model; `None` if the user's `build` cannot be called once more."""
    try:
        return make()
    except Exception as error:  # the user's code raises errors of any kind
        if is_out_of_memory(error):
            raise
        return None


def _fits(own: keras.Model, model: keras.Model, recipe: Recipe, graph: str) -> bool:
    """Whether a model has that graph, and the state of another one fits into it."""
    if graph_of(own, recipe) != graph:
        return False
    shapes = [[(each.shape, each.dtype) for each in _state(one)] for one in (own, model)]
    return shapes[0] == shapes[1]


def _copy_of_fit(source: keras.Model, target: keras.Model) -> None:
    """Give a model what `fit` has set on another one."""
    for name in ("stop_training", "history"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
    if isinstance(getattr(target, "history", None), keras.callbacks.History):
        target.history.set_model(target)


def _shares_variables(model: keras.Model, other: keras.Model) -> bool:
    own = {id(each) for each in model.variables}
    return model is other or any(id(each) in own for each in other.variables)


def _state_bytes(model: keras.Model) -> int:
    """Bytes of a model and the two slots that an optimizer may hold for each weight."""
    own = sum(each.value.dtype.size * each.value.shape.num_elements() for each in model.variables)
    return 3 * own


def _reads_itself_alone(model: keras.Model) -> bool:
    """Whether the compiled steps of a model read nothing but variables that are copied or reset."""
    known = [*_state(model), *(each for metric in model.metrics for each in metric.variables)]
    steps = [model.train_function, model.test_function]
    for parts, _, compiled in vars(model)[KEPT_STEP]:
        known += drawn_from(parts)
        steps.append(compiled)
    functions = [keras_private.function_of_step(each) for each in steps if each is not None]
    if None in functions:
        return False
    loop = loop_of_step(model.test_function)
    functions += [] if loop is None else [loop]
    variables = [keras_private.tensorflow_variable(each) for each in known]
    return tensorflow_private.reads_alone(functions, variables)
