"""Configuration: a model made again by what Keras knows of it, under the dtype policy of a recipe.

Keras' own configuration cannot hold a function that nobody registered, nor a lambda that reads
globals. These stay the live objects that the model has.
"""

from __future__ import annotations

import contextlib
import copy
import textwrap
import types
from collections.abc import Container, Iterator, Mapping
from typing import Any

import keras

from kbatch.errors import ModelError
from kbatch.models.compilation import PLAIN_VALUES
from kbatch.runtime import keras_private

LONGEST = 160  # characters of an error of Keras' that a sentence shows
POLICY = "DTypePolicy"
MADE_WITH = "_kbatch_made_with"  # where a model keeps the arguments of its constructor
LAMBDA = "__lambda__"  # how Keras marks a lambda in a configuration
PARTS = (
    keras.Layer,
    keras.Initializer,
    keras.Regularizer,
    keras.constraints.Constraint,
)


class Configuration:
    """The configuration of a model, of which more like it are made, with weights of their own.

    Attributes:
        policy: String, the user's dtype policy: layers that have another one keep theirs, and
            layers that were given it by name.

    Raises:
        ModelError: If the model cannot be made from a configuration.
    """

    def __init__(self, model: keras.Model, policy: str) -> None:
        self.policy = policy
        self._class = type(model)
        self._objects = custom_objects(model)
        functions: dict[str, Any] = {}
        try:
            config = model.get_config()
            self._config = _with_live(config, _lambdas(model), functions)
        except Exception as error:  # the user's own get_config may raise any kind
            raise _refusal(model, error) from error
        self._objects |= functions
        layers = keras_private.flatten_layers(model)
        self._pinned = {
            each.name for each in layers if keras_private.policy_by_name(each) is not None
        }
        self._built = _build_config(model)
        self._shapes = [tuple(each.shape) for each in model.variables]

    def made(self, inputs: Any = None) -> keras.Model:
        """Return a new model under the policy that Keras has now, with fresh weights.

        Args:
            inputs: Inputs that the model can be called on, for one whose variables only a call
                makes. Optional.
        """
        policy = str(keras.config.dtype_policy().name)
        config = with_policy(copy.deepcopy(self._config), self.policy, policy, self._pinned)
        try:
            with keras.saving.custom_object_scope(self._objects), keras_private.unsafe_lambdas():
                made = self._class.from_config(config)
            self._build(made, inputs)
        except Exception as error:  # layers' own constructors raise any kind
            raise _refusal(self._class, error) from error
        return made

    def _build(self, made: keras.Model, inputs: Any) -> None:
        if len(made.variables) == len(self._shapes):
            return
        if self._built and not made.built:
            made.build_from_config(self._built)
        if len(made.variables) != len(self._shapes) and inputs is not None:
            made(inputs, training=False)


class Constructor:
    """A class of the user's and the arguments that it was called with, instead of a configuration.

    Keras keeps no arguments of models that are subclasses. They are noted inside of `noting`.
    Layers and models among them are made again, each once; all else is what the user passed.
    """

    def __init__(self, model: keras.Model, policy: str) -> None:
        self._class = type(model)
        self._arguments = vars(model)[MADE_WITH]
        flat = keras.tree.flatten(self._arguments)
        self._parts = {id(each): source_of(each, policy) for each in flat if _is_layer(each)}
        self._count = len(model.variables)

    def made(self, inputs: Any = None) -> Any:
        """Return a new model; see `Configuration.made`."""
        parts = {key: source.made() for key, source in self._parts.items()}
        args, kwargs = keras.tree.map_structure(
            lambda each: parts.get(id(each), each), self._arguments
        )
        try:
            made = self._class(*args, **kwargs)
            if len(made.variables) != self._count and inputs is not None:
                made(inputs, training=False)
        except Exception as error:  # the user's own constructor raises any kind
            raise _refusal(self._class, error) from error
        return made


def source_of(model: Any, policy: str) -> Configuration | Constructor:
    """Return what makes models or layers like one: its configuration, or else its constructor."""
    try:
        found = Configuration(model, policy)
        if MADE_WITH in vars(model):
            found.made()  # a configuration that can be read may still lack what is needed
        return found
    except ModelError:
        if MADE_WITH not in vars(model):
            raise
    return Constructor(model, policy)


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Note the arguments of models that are made inside of the `with` block."""
    new = keras.Model.__new__

    def noted(kind: type, *args: Any, **kwargs: Any) -> Any:
        made = new(kind, *args, **kwargs)
        if isinstance(made, keras.Model):
            vars(made)[MADE_WITH] = (args, kwargs)  # past `setattr`, so that nothing tracks it
        return made

    keras.Model.__new__ = noted
    try:
        yield
    finally:
        keras.Model.__new__ = new


def _is_layer(part: Any) -> bool:
    return isinstance(part, keras.Layer)


def check_like(model: keras.Model, made: keras.Model) -> None:
    """Refuse a model made again that has other variables, or attributes, than the first."""
    own, others = _own_attributes(model), _own_attributes(made)
    differing = sorted(name for name in own if own[name] != others.get(name))
    if differing:
        raise ModelError(
            "A model made again must have the attributes of the model itself",
            f"{type(model).__name__} with another {', '.join(differing[:3])}",
            "Set them in the constructor, or pass a function that builds the model",
        )
    shapes = [[tuple(each.shape) for each in one.variables] for one in (model, made)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "A model made from its configuration must have the variables of the model itself",
            f"{len(shapes[1])} variables where {type(model).__name__} has {len(shapes[0])}",
            "Let get_config() tell all that the constructor needs",
        )


def with_policy(config: Any, own: str, policy: str, pinned: Container[str] = ()) -> Any:
    """Return a configuration in which one dtype policy took the place of another.

    Layers of some names keep theirs.

    >>> layer = {"dtype": {"class_name": "DTypePolicy", "config": {"name": "float32"}}}
    >>> with_policy(layer, "float32", "mixed_float16")["dtype"]["config"]
    {'name': 'mixed_float16'}
    """
    if isinstance(config, dict):
        if config.get("class_name") == POLICY and config.get("config") == {"name": own}:
            return {**config, "config": {"name": policy}}
        name = config.get("name")
        kept = ("dtype",) if isinstance(name, str) and name in pinned else ()
        return {
            name: value if name in kept else with_policy(value, own, policy, pinned)
            for name, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        parts = [with_policy(each, own, policy, pinned) for each in config]
        return type(config)(parts) if type(config) in (list, tuple) else config
    return config


def custom_objects(model: keras.Model) -> dict[str, Any]:
    """Return the user's classes and functions that a model is made of, by the names Keras asks."""
    found: dict[str, Any] = {}
    for part in _parts(model):
        for name in _names(part):
            if found.setdefault(name, part) is not part:
                raise ModelError(
                    "Each class and function that a model is made of must have a name of its own",
                    f"two of the name {name}",
                    "Rename one of them",
                )
    return found


def _parts(model: keras.Model) -> Iterator[Any]:
    """The classes and functions of layers and of what they hold, but for Keras' own."""
    for layer in keras_private.flatten_layers(model):
        # Keras wraps methods such as `build` of each layer, and keeps them as attributes
        own = [value for name, value in vars(layer).items() if not hasattr(type(layer), name)]
        held = [layer, *own]
        for each in held:
            part = type(each) if isinstance(each, PARTS) else each
            usable = isinstance(part, (type, types.FunctionType))
            named = usable and getattr(part, "__name__", "") != "<lambda>"
            if named and not part.__module__.startswith("keras."):
                yield part


def _names(part: Any) -> set[str]:
    return {part.__name__, keras.saving.get_registered_name(part)}


def _lambdas(model: keras.Model) -> dict[str, list[Any]]:
    """The lambdas of Lambda layers, by the name of the layer."""
    found: dict[str, list[Any]] = {}
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, keras.layers.Lambda):
            found.setdefault(layer.name, []).append(layer)
    return found


def _with_live(config: Any, lambdas: Mapping[str, list[Any]], functions: dict[str, Any]) -> Any:
    """The configuration with the functions of Lambda layers by name, which are noted."""
    if isinstance(config, (list, tuple)):
        parts = [_with_live(each, lambdas, functions) for each in config]
        return type(config)(parts) if type(config) in (list, tuple) else config
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "Lambda" and isinstance(config.get("config"), dict):
        own = config["config"]
        layers = lambdas.get(own.get("name"), [])
        if len({id(layer.function) for layer in layers}) == 1:
            return {**config, "config": _named_functions(own, layers[0], functions)}
    return {name: _with_live(value, lambdas, functions) for name, value in config.items()}


def _named_functions(own: dict[str, Any], layer: Any, functions: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a Lambda layer with names instead of code."""
    named = dict(own)
    for field in ("function", "output_shape", "mask"):
        said = own.get(field)
        if isinstance(said, dict) and said.get("class_name") == LAMBDA:
            name = f"kbatch_{field}_{len(functions)}"
            functions[name] = keras_private.lambda_function(layer, field)
            named[field] = {
                "module": "builtins",
                "class_name": "function",
                "config": name,
                "registered_name": name,
            }
    return named


def _own_attributes(model: keras.Model) -> dict[str, Any]:
    """The plain values that the user's class keeps, beside those of every model of Keras'."""
    if type(model).__module__.startswith("keras."):
        return {}
    usual = vars(keras.Sequential())
    return {
        name: value
        for name, value in vars(model).items()
        if name not in usual
        and not name.startswith(("_", "stop_"))  # Keras notes the latter where it trains
        and isinstance(value, PLAIN_VALUES)
    }


def _build_config(model: keras.Model) -> Any:
    try:
        return model.get_build_config() if model.built else None
    except Exception:  # a model of the user's own may not know its shapes
        return None


def _refusal(model: Any, error: Exception) -> ModelError:
    kind = model if isinstance(model, type) else type(model)
    sentence = " ".join(str(error).split()) or type(error).__name__
    return ModelError(
        "A model must be one that Keras can make again from its configuration",
        f"{kind.__name__}: {textwrap.shorten(sentence, LONGEST)}",
        "Give the class a get_config(), or pass a function that builds the model",
    )
