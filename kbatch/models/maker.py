"""Model maker: a recipe and the user's `build` give a compiled model."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import numbers
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import keras
import keras_tuner
import numpy as np

from kbatch.axes import RESERVED
from kbatch.errors import ModelError, SearchError
from kbatch.model_spec import LEAST_SEED, ModelSpec
from kbatch.models import policies, replicas
from kbatch.models.compilation import (
    CompileArguments,
    as_built,
    compile_for,
    fresh_names,
    give_own_optimizer,
    names_collide,
)
from kbatch.models.normalization import normalized
from kbatch.models.policies import policy_scope
from kbatch.models.preprocessor import take_off
from kbatch.models.start import Made, Start, seed_scope
from kbatch.recipe import Recipe
from kbatch.recipe_words import FLOAT8, OF_OPTIMIZER, POLICIES, policy_of_keras, whole_number
from kbatch.recompute._planner import apply_recipe
from kbatch.runtime import keras_tuner_private
from kbatch.runtime.keras_private import compiled_by_user
from kbatch.space import Space

Build = Callable[..., keras.Model]
Declare = Callable[[Any], None]
OF_AXES = "kbatch_of_axes"  # where they keep today's values of those that have an axis' name
UNSAID = "kbatch_unsaid"  # where hyperparameters keep the names that nobody gave a value or default
# Of a class of KerasTuner: what its values are, and in words.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "Boolean": ((bool, np.bool_), "True or False"),
    "Int": ((numbers.Integral,), "a whole number"),
    "Float": ((numbers.Real,), "a number"),
    "text": ((str,), "a text"),
}


def nothing(hp: Any) -> None:
    """Declare no hyperparameters."""


class GuardedHyperParameters(keras_tuner.HyperParameters):
    """Hyperparameters that share their state with others, and answer reserved names by today's.

    The axes of kbatch take the place of hyperparameters with their names. These are neither drawn
    nor listed.

    Overrides the private method `_retrieve`, through which every `hp.Choice` and its kind declare
    themselves (keras_tuner/src/engine/hyperparameters/hyperparameters.py, KerasTuner 1.4.8).
    """

    __slots__ = ("_bare", "_off", "_reserved", "_today")  # not in the dict that is shared

    def __init__(
        self,
        hp: keras_tuner.HyperParameters,
        reserved: frozenset[str],
        today: Mapping[str, Any] | None = None,
    ) -> None:
        self.__dict__ = hp.__dict__  # type: ignore[misc]
        self._reserved, self._today = reserved, today or {}
        self._bare = self._off = False

    @contextmanager
    def conditional_scope(self, parent_name: str, parent_values: Any) -> Iterator[None]:
        """Declare under a condition; today's value settles one on the name of an axis."""
        if parent_name not in self._reserved:
            with super().conditional_scope(parent_name, parent_values):
                yield
            return
        values = parent_values if isinstance(parent_values, (list, tuple)) else [parent_values]
        before = self._off
        self._off = before or self.__dict__.get(OF_AXES, {}).get(parent_name) not in values
        try:
            yield
        finally:
            self._off = before

    def Boolean(self, name: str, default: Any = None, *args: Any, **conditions: Any) -> Any:  # noqa: N802
        """Declare a boolean, and note whether it has a default, which KerasTuner does not tell."""
        self._bare = default is None
        try:
            return super().Boolean(name, bool(default), *args, **conditions)
        finally:
            self._bare = False

    def _retrieve(self, hp: Any) -> Any:
        if self._off:
            return None  # as KerasTuner does outside of a condition
        if hp.name in self._reserved:
            value = hp.default
            if hp.name in self._today and _is_of_build(hp, self._today[hp.name]):
                value = self._today[hp.name]
                _check_kind(hp, value)
            self.__dict__.setdefault(OF_AXES, {})[hp.name] = value
            return value
        known = hp.name in self.values
        value = super()._retrieve(hp)
        if known or hp.name not in self.values:  # it has a value already, or is not active
            return value
        if hp.name in self._today:
            _check_kind(hp, self._today[hp.name])
            self.values[hp.name] = self._today[hp.name]
        elif (self._bare or keras_tuner_private.has_no_default(hp)) and _varies(hp):
            self.__dict__.setdefault(UNSAID, []).append(hp.name)
        return self.values[hp.name]


def _is_of_build(hp: Any, value: Any) -> bool:
    """Whether a value may be that of a user's hyperparameter, and is not an axis' of kbatch."""
    words = [each for each in getattr(hp, "values", ()) if isinstance(each, str)]
    return not words or value in words


def _check_kind(hp: Any, value: Any) -> None:
    """Refuse a value of another kind than a hyperparameter takes; a fixed one takes any."""
    kind = type(hp).__name__
    if kind == "Choice":
        kind = "text" if all(isinstance(each, str) for each in hp.values) else "Float"
    if kind not in KINDS:
        return
    taken, words = KINDS[kind]
    is_boolean = isinstance(value, (bool, np.bool_))
    fits = isinstance(value, taken) and is_boolean == (kind == "Boolean")
    if not fits or (kind == "Float" and not math.isfinite(value)):
        raise SearchError(
            f"`values` must give the hyperparameter {hp.name} {words}",
            repr(value),
            "Correct its kind",
        )


def _varies(hp: Any) -> bool:
    """Whether a hyperparameter has more than one value."""
    if hasattr(hp, "max_value"):
        return bool(hp.min_value != hp.max_value)
    return len(getattr(hp, "values", (False, True))) > 1


def own_values(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Return the values of the user's own hyperparameters, once `build` has declared them."""
    names = dict.fromkeys(each.name for each in hp.space)
    return {name: hp.values[name] for name in names if name not in RESERVED and name in hp.values}


def unsaid_values(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Return the values that nobody chose: neither a value was given nor a `default=`.

    KerasTuner then takes the lowest value, or the first choice.
    """
    own = own_values(hp)
    return {name: own[name] for name in vars(hp).get(UNSAID, ()) if name in own}


def values_of_axes(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Return today's values of the user's hyperparameters that have the name of an axis."""
    return dict(vars(hp).get(OF_AXES, {}))


def check_known_values(given: Mapping[str, Any], hp: Any, build: Callable[[Any], Any]) -> None:
    """Refuse values of hyperparameters that `build` does not declare: they have no effect.

    Values of hyperparameters that it declares beside other values, such as those of a third layer
    of two, may stay.
    """
    declared = {each.name for each in hp.space}
    unknown = {name for name in given if name not in declared and name not in RESERVED}
    for axis in list(hp.space) if unknown else ():
        for other in _others(axis, hp):
            varied = fresh_hyperparameters({**hp.values, axis.name: other})
            build(varied)
            unknown -= {each.name for each in varied.space}
            declared |= {each.name for each in varied.space}
    if unknown:
        known = ", ".join(sorted(declared)) or "none"
        raise SearchError(
            f"`values` must name hyperparameters that `build` declares ({known})",
            ", ".join(sorted(unknown)),
            "Correct the names, or leave them out",
        )


def _others(axis: Any, hp: Any) -> list[Any]:
    """Other values of a hyperparameter, beside which `build` may declare more."""
    if axis.name in RESERVED or axis.name not in hp.values or not _varies(axis):
        return []
    if isinstance(getattr(axis, "max_value", None), float):
        return []
    others = [axis.max_value] if hasattr(axis, "max_value") else list(axis.values)
    return [other for other in others if other != hp.values[axis.name]]


def fresh_hyperparameters(values: Mapping[str, Any] | None = None) -> keras_tuner.HyperParameters:
    """Return hyperparameters with these values; all others take their defaults."""
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values or {})
    return hp


def call_build(
    build: Build,
    hp: keras_tuner.HyperParameters,
    reserved: frozenset[str],
    today: Mapping[str, Any] | None = None,
) -> keras.Model:
    """Call the user's `build(hp)` or `build()`, and return its model."""
    positional = [
        p
        for p in inspect.signature(build).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_hp = any(p.name == "hp" or p.default is p.empty for p in positional)
    return build(GuardedHyperParameters(hp, reserved, today)) if takes_hp else build()


def _own_policy() -> str:
    return str(keras.config.dtype_policy().name)


def _among_policies(policy: str) -> str:
    known = [each for each in POLICIES if each == policy_of_keras(each)]
    if policy not in known:
        raise ModelError(
            f"The global dtype policy must be one of {', '.join(known)}",
            policy,
            'Call keras.config.set_dtype_policy("float32"), say, before',
        )
    return policy


@dataclass
class FirstInputs:
    """The inputs of one example, which tell the lengths that models leave open."""

    x: Any = None  # arrays with one example each; `None` before the checks have seen the data


@dataclass(frozen=True)
class ModelMaker:
    """Makes the models of a specification, compiled for a recipe."""

    build: Build  # the user's function `build(hp)` or `build()`
    # `CompileArguments`, for models that `build` does not compile
    arguments: CompileArguments = CompileArguments()
    seed: int = 0  # seed of the weights
    # hyperparameter names that `build` must not declare
    reserved: frozenset[str] = frozenset()
    # the user's function `declare_hyperparameters(hp)`, called before `build` on hyperparameters
    # that do not come from a tuner
    declare: Declare = nothing
    # the user's own dtype policy, read when this object is made
    own_policy: str = field(default_factory=_own_policy)
    # `Start`, the variables that models share; known once `start.begin` was called
    start: Start = field(default_factory=Start, compare=False)
    # `FirstInputs`, shared by all copies as `start` is
    first: FirstInputs = field(default_factory=FirstInputs, compare=False)
    # values of the user's hyperparameters that take the place of defaults
    values: Mapping[str, Any] = field(default_factory=dict)
    # the same of those that have the name of an axis
    values_of_axes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.build) or isinstance(self.build, keras.Model):
            raise ModelError(
                "`build` must be a function that returns a model, or a keras_tuner.HyperModel",
                type(self.build).__name__,
                "Pass `build`, not `build()`",
            )
        if keras.backend.backend() != "tensorflow":
            raise ModelError(
                "Keras must run on TensorFlow",
                f"the backend {keras.backend.backend()}",
                'Set the environment variable KERAS_BACKEND="tensorflow" before keras is imported',
            )
        seed = whole_number(self.seed, LEAST_SEED)
        if seed is None:
            raise SearchError(
                "`seed` must be a whole number: every trial starts with the same weights",
                self.seed,
                "Pass seed=0, say",
            )
        object.__setattr__(self, "seed", seed)

    @classmethod
    def of(cls, spec: ModelSpec, reserved: frozenset[str] = frozenset()) -> ModelMaker:
        """The maker of a specification's models."""
        arguments = CompileArguments(spec.loss, spec.metrics)
        maker = cls(spec.build, arguments, spec.seed, reserved, spec.declare or nothing)
        return maker.with_values(spec.values)

    def with_values(self, values: Mapping[str, Any]) -> ModelMaker:
        """Return the maker with other values of today."""
        own = {name: value for name, value in values.items() if name not in self.reserved}
        of_axes = {name: value for name, value in values.items() if name in self.reserved}
        return dataclasses.replace(self, values=own, values_of_axes=of_axes)

    def make(self, recipe: Recipe, hp: Any = None) -> keras.Model:
        """Build and compile a model for a recipe, and apply the recompute plan of the recipe."""
        model = self.raw(recipe.policy, hp)
        with policy_scope(recipe.policy, self.own_policy):
            if isinstance(model, keras.Model):  # `compile_for` refuses anything else
                model = normalized(model, recipe)
                if recipe.policy == FLOAT8:
                    policies.quantized(model)
            compile_for(model, recipe, self.arguments)
        apply_recipe(model, recipe.recompute, recipe.examples_per_pass, self.first.x)
        return model

    def with_seed(self, seed: int) -> ModelMaker:
        """Return the maker of the same models with another seed."""
        return dataclasses.replace(self, seed=seed)

    def raw(self, policy: str, hp: Any = None) -> keras.Model:
        """Call `build` under a dtype policy and the seed, with names as in a fresh process."""
        try:
            with fresh_names():
                return self._built(policy, hp)
        except Exception as error:
            if not names_collide(error):
                raise
        return self._built(policy, hp)

    def _built(self, policy: str, hp: Any) -> keras.Model:
        def called() -> keras.Model:
            with policy_scope(policy, self.own_policy), seed_scope(self.seed):
                given = self.hyperparameters() if hp is None else hp
                return as_built(call_build(self.build, given, self.reserved, self.today))

        self.start.find(called)
        self.start.put_back()
        made = Made()
        with made.watching():
            model = called()
        replicas.check_scope(model)
        self.start.note(model, made)
        give_own_optimizer(model, made)
        take_off(model)
        return model

    def hyperparameters(self, values: Mapping[str, Any] | None = None) -> Any:
        """Return hyperparameters with these values; the others take today's, or their defaults."""
        hp = fresh_hyperparameters(values)
        self.declare(self.guarded(hp))
        return hp

    def guarded(self, hp: Any) -> GuardedHyperParameters:
        """Return hyperparameters that share their state, with today's values for defaults."""
        return GuardedHyperParameters(hp, self.reserved, self.today)

    @property
    def today(self) -> dict[str, Any]:
        """The values of today, those of hyperparameters with the name of an axis too."""
        return {**self.values, **self.values_of_axes}

    def baseline(self, recipe: Recipe) -> Recipe:
        """Return the baseline recipe with the settings of the user's model.

        The optimizer is the model's own if the model is compiled, and `jit_compile` is what Keras'
        "auto" resolves to. The policy `"float32"`, the default of a recipe, is replaced by the
        user's global policy.
        """
        policy = recipe.policy if recipe.policy != "float32" else _among_policies(self.own_policy)
        model = self.raw(policy)
        jit_compile = bool(model.jit_compile)
        fields: dict[str, Any] = {"jit_compile": jit_compile, "policy": policy}
        if model.compiled:
            own = {name: getattr(Recipe, name) for name in (*OF_OPTIMIZER, "batch_schedule")}
            fields |= {**own, "optimizer": "compiled", "learning_rate": None}
        return dataclasses.replace(recipe, **fields)


NUMBER = re.compile(r"_\d+(?=\b)")  # Keras numbers the layers of a process in their names
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def signature(model: keras.Model, arguments: CompileArguments) -> dict[str, Any]:
    """Return a dict that JSON can hold, equal for two models that are built in the same way."""
    own = compiled_by_user(model) or {"loss": arguments.loss, "metrics": arguments.metrics}
    said = {
        name: described(own[name])
        for name in ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
        if own.get(name) is not None
    }
    return {
        "parameters": int(sum(variable.shape.num_elements() for variable in _tensors(model))),
        "architecture": _architecture(model),
        **said,
    }


def described(part: Any) -> Any:
    """Describe losses, metrics, optimizers or structures of them; equal ones in equal words."""
    if isinstance(part, Mapping):
        return {str(name): described(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [described(value) for value in part]
    if part is None or isinstance(part, (str, int, float, bool)):
        return part
    if hasattr(part, "get_config"):
        return f"{type(part).__name__} {_digest(_config(part))}"
    code = getattr(part, "__code__", None)
    name = getattr(part, "__qualname__", type(part).__name__)
    if code is None:
        return name
    closed = _closed_over(part)
    return f"{name} {_digest(_text(code) + (str(closed) if closed else ''))}"


def _text(code: CodeType) -> str:
    """The code of a function, and of those inside it, without the places where they are."""
    inner = [_text(each) for each in code.co_consts if isinstance(each, CodeType)]
    plain = tuple(each for each in code.co_consts if not isinstance(each, CodeType))
    return "".join([str((code.co_code.hex(), plain)), *inner])


def _closed_over(function: Any) -> list[Any]:
    """The plain values that a function closes over, such as the `gamma` of a loss."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars
    values = [(name, _content(cell)) for name, cell in zip(names, cells, strict=True)]
    return [each for each in values if isinstance(each[1], (str, int, float, bool))]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _tensors(model: keras.Model) -> list[Any]:
    return [variable.value for variable in model.weights]


def _architecture(model: keras.Model) -> str:
    shapes = json.dumps([list(map(int, tensor.shape)) for tensor in _tensors(model)])
    return _digest(f"{type(model).__name__} {shapes} {_config(model)}")


def _config(part: Any) -> str:
    """Return the configuration as text; empty without one, as for subclassed models."""
    try:
        text = json.dumps(part.get_config(), sort_keys=True, default=str)
    except Exception:
        return ""
    return NUMBER.sub("", ADDRESS.sub("", text))


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def compilable(space: Space, model_maker: ModelMaker) -> Space:
    """Return the space, without XLA where nobody asked for it and Keras would not compile by it.

    That is so for a model with a layer that XLA cannot compile, for one that its author compiled
    with `jit_compile=False`, and where operations are made deterministic. A model is made only
    where the space would search XLA by default, which is on a GPU.
    """
    if space.jit_compile is not None or True not in space.compilations:
        return space
    if model_maker.raw(space.policies[0]).jit_compile:
        return space
    return dataclasses.replace(space, jit_compile=False)


# Testing one hyperparameter takes two models, so only names that suggest an optimizer are tested.
OPTIMIZER_STATE = re.compile(
    r"(^|_)(lr|learn\w*|rate|momentum|nesterov|decay|wd|beta\w*|epsilon|optim\w*|clip\w*"
    r"|schedule\w*)(_|\d|$)",
    re.IGNORECASE,
)


def idle(model_maker: ModelMaker, policy: str, axes: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of hyperparameters that change only the optimizer of the model."""
    tried = [
        axis
        for axis in axes
        if axis.name not in model_maker.reserved and OPTIMIZER_STATE.search(axis.name)
    ]
    found = []
    for axis in tried:
        others = [value for value in axis.values if value != axis.default]
        if others:
            first, second = (
                model_maker.raw(policy, model_maker.hyperparameters({axis.name: value}))
                for value in (axis.default, others[-1])
            )
            if _differ_in_the_optimizer_alone(first, second, model_maker):
                found.append(axis.name)
    return tuple(dict.fromkeys(found))


def of_axes_sentence(today: Mapping[str, Any]) -> str:
    """Return the sentence on the user's hyperparameters that have the name of an axis."""
    own = ", ".join(f"{name}={value}" for name, value in today.items())
    return (
        f"The baseline has {own} of your build(), as its default= or values= says. Trials with "
        "optimizer=compiled have it too; others have what kbatch's own axes draw."
    )


def idle_sentence(names: Iterable[str], today: Mapping[str, Any]) -> str:
    """Return a warning that names idle hyperparameters."""
    names = tuple(names)
    own = ", ".join(f"{name}={today[name]}" for name in names if name in today)
    baseline = f" Only the baseline's own optimizer has them: {own}." if own else ""
    return (
        f"The hyperparameters {', '.join(names)} of `build` have no effect in trials: kbatch "
        "replaces the optimizer there and searches its rate as learning_rate_sgd and "
        f"learning_rate_adam.{baseline} Take them out of `build`, or search "
        'Space(optimizer="compiled").'
    )


def _differ_in_the_optimizer_alone(
    first: keras.Model, second: keras.Model, model_maker: ModelMaker
) -> bool:
    if not getattr(first, "outputs", None) or not first.compiled or not second.compiled:
        return False  # a model without a configuration may differ in ways that do not show
    told = [signature(model, model_maker.arguments) for model in (first, second)]
    optimizers = [said.pop("optimizer", None) for said in told]
    return told[0] == told[1] and optimizers[0] != optimizers[1]
