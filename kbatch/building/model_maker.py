"""Model maker: builds and compiles the models of a specification for one recipe after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from kbatch.building import float8, layer_names
from kbatch.building.compiled import CompileArguments, as_built, compile_for, give_own_optimizer
from kbatch.building.hyperparameters import (
    Build,
    Declare,
    GuardedHyperParameters,
    call_build,
    fresh,
    nothing,
)
from kbatch.building.normalization import normalized
from kbatch.building.policy_scope import policy_scope
from kbatch.building.seed_scope import seed_scope
from kbatch.building.start import Made, Start
from kbatch.dtype_policy import FLOAT8, POLICIES, policy_of_keras
from kbatch.errors import ModelError, SearchError
from kbatch.model_spec import LEAST_SEED, ModelSpec
from kbatch.recipe import Recipe
from kbatch.recipe_fields import OF_OPTIMIZER, whole_number
from kbatch.recompute._recipe_plan import apply_recipe


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


@dataclass(frozen=True)
class ModelMaker:
    """Makes the models of a specification, compiled for a recipe.

    Attributes:
        build: The user's function `build(hp)` or `build()`.
        arguments: `CompileArguments`, for models that `build` does not compile.
        seed: Integer, seed of the weights.
        reserved: Frozenset of hyperparameter names that `build` must not declare.
        declare: The user's function `declare_hyperparameters(hp)`, called before `build` on
            hyperparameters that do not come from a tuner.
        own_policy: String, the user's own dtype policy, read when this object is made.
        start: `Start`, the variables that models share; known once `start.begin` was called.
        values: Mapping, values of the user's hyperparameters that take the place of defaults.
    """

    build: Build
    arguments: CompileArguments = CompileArguments()
    seed: int = 0
    reserved: frozenset[str] = frozenset()
    declare: Declare = nothing
    own_policy: str = field(default_factory=_own_policy)
    start: Start = field(default_factory=Start, compare=False)
    values: Mapping[str, Any] = field(default_factory=dict)

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
        """The maker of a specification's models.

        Args:
            spec: `ModelSpec`.
            reserved: Hyperparameter names that `build` must not declare.
        """
        arguments = CompileArguments(spec.loss, spec.metrics)
        own = {name: value for name, value in spec.values.items() if name not in reserved}
        return cls(spec.build, arguments, spec.seed, reserved, spec.declare or nothing, values=own)

    def make(self, recipe: Recipe, hp: Any = None) -> keras.Model:
        """Build and compile a model for a recipe, and apply the recompute plan of the recipe.

        Args:
            recipe: `Recipe` to build and compile for.
            hp: `keras_tuner.HyperParameters` for `build`. Defaults to the defaults that `build`
                declares.
        """
        model = self.raw(recipe.policy, hp)
        with policy_scope(recipe.policy, self.own_policy):
            if isinstance(model, keras.Model):  # `compile_for` refuses anything else
                model = normalized(model, recipe)
                if recipe.policy == FLOAT8:
                    float8.quantized(model)
            compile_for(model, recipe, self.arguments)
        apply_recipe(model, recipe.recompute, recipe.examples_per_pass)
        return model

    def with_seed(self, seed: int) -> ModelMaker:
        """Return the maker of the same models with another seed."""
        return dataclasses.replace(self, seed=seed)

    def raw(self, policy: str, hp: Any = None) -> keras.Model:
        """Call `build` under a dtype policy and the seed, with names as in a fresh process."""
        try:
            with layer_names.fresh_names():
                return self._built(policy, hp)
        except Exception as error:
            if not layer_names.collide(error):
                raise
        return self._built(policy, hp)

    def _built(self, policy: str, hp: Any) -> keras.Model:
        def called() -> keras.Model:
            with policy_scope(policy, self.own_policy), seed_scope(self.seed):
                given = self.hyperparameters() if hp is None else hp
                return as_built(call_build(self.build, given, self.reserved, self.values))

        self.start.find(called)
        self.start.put_back()
        made = Made()
        with made.watching():
            model = called()
        self.start.note(model, made)
        give_own_optimizer(model, made)
        return model

    def hyperparameters(self, values: Mapping[str, Any] | None = None) -> Any:
        """Return hyperparameters with these values; the others take today's, or their defaults."""
        hp = fresh(values)
        self.declare(self.guarded(hp))
        return hp

    def guarded(self, hp: Any) -> GuardedHyperParameters:
        """Return hyperparameters that share their state, with today's values for defaults."""
        return GuardedHyperParameters(hp, self.reserved, self.values)

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
