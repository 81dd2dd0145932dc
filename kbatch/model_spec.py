"""Model specification: a build function, and what its models are compiled and seeded with."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from kbatch.errors import ModelError, SearchError, made_in_one_frame
from kbatch.given_values import values_of
from kbatch.recipe_fields import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])
LEAST_SEED = -(2**31)  # the smallest int32: TensorFlow's seeds may be negative


class ModelArguments(TypedDict, total=False):
    """Arguments of every entry point that makes models; see `ModelSpec` for their meaning."""

    loss: Any
    metrics: Any
    seed: int
    values: Any
    declare: Callable[[Any], None] | None


@made_in_one_frame
@dataclass(frozen=True)
class ModelSpec:
    """How to make a model: a build function, and what its models are compiled and seeded with.

    Every entry point that makes models takes these arguments in the same way: `build` first, the
    others by name. Make a `ModelSpec` to say them once, and pass it for `build` to
    `kbatch.HyperModel`, `train`, `find_max_batch`, `max_batches`, `noise_scale`, `throughput` and
    `memory.estimate`.

    Args:
        build: Function `build(hp)` or `build()` that returns a `keras.Model`, compiled or not, or a
            `keras_tuner.HyperModel` without a `fit` of its own.
        loss: Loss, for models that `build` does not compile. Optional.
        metrics: List of metrics, for models that `build` does not compile. Optional.
        seed: Integer, the seed of weights, data order and dropout. Defaults to `0`.
        values: Values of the hyperparameters that `build(hp)` declares: a mapping by name, a
            `keras_tuner.HyperParameters`, a tuner (those of its best trial), or the folder of its
            project. The others take their defaults, which a remark names. In a search they are
            the baseline's: what you have today.
        declare: Function `declare(hp)` that declares hyperparameters before `build` is called.
            Optional.

    Raises:
        ModelError: If `build` or `declare` is not a function.
        SearchError: If `seed` is not a whole number.

    Example:
    ```python
    spec = kbatch.ModelSpec(build, loss="binary_crossentropy", metrics=["accuracy"], seed=1)
    table = kbatch.max_batches(spec, x, y, space, memory_limit="8GB")
    tuner = keras_tuner.RandomSearch(
        kbatch.HyperModel(spec, space, max_batch=table), objective=kbatch.objective(), max_trials=20
    )
    ```
    """

    build: Callable[..., Any]
    loss: Any = None
    metrics: Any = None
    seed: int = 0
    values: Any = None
    declare: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        hypermodel_class = _hypermodel_class()
        if hypermodel_class is not None and isinstance(self.build, hypermodel_class):
            _take_apart(self, self.build, hypermodel_class)
        if not callable(self.build) or hasattr(self.build, "train_step"):
            raise ModelError(
                "`build` must be a function that returns a model, or a keras_tuner.HyperModel",
                type(self.build).__name__,
                "Pass `build`, not `build()`",
            )
        if self.declare is not None and not callable(self.declare):
            raise ModelError(
                "`declare` must be a function declare(hp)",
                repr(self.declare),
                "Pass a function that declares hyperparameters, or leave it out",
            )
        seed = whole_number(self.seed, LEAST_SEED)
        if seed is None:
            raise SearchError(
                "`seed` must be a whole number: every trial begins with the same weights",
                self.seed,
                "Pass seed=0, say",
            )
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "values", values_of(self.values))

    @classmethod
    def of(cls, build: Any, **arguments: Unpack[ModelArguments]) -> ModelSpec:
        """Return the specification that an entry point was given.

        Args:
            build: See the class, or a `ModelSpec`.
            **arguments: `loss`, `metrics`, `seed`, `values` and `declare`; none with a `ModelSpec`.

        Raises:
            SearchError: If an argument is given both in a `ModelSpec` and by name.
        """
        check_names(arguments, ModelArguments.__annotations__)
        if not isinstance(build, ModelSpec):
            return cls(build, **arguments)
        if arguments:
            raise SearchError(
                "A ModelSpec must hold all arguments of the model itself",
                f"a ModelSpec and {', '.join(sorted(arguments))}",
                "Use dataclasses.replace(spec, …), or pass the build function",
            )
        return build


def shows(*forms: Any) -> Callable[[Function], Function]:
    """Let `help` and tab completion show arguments by name that a function takes as `**arguments`.

    Args:
        *forms: Dataclasses whose fields, but `build`, are arguments of the function.
    """

    def shown(function: Function) -> Function:
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        for form in forms:
            for field in fields(form):
                if field.name != "build":
                    kind = inspect.Parameter.KEYWORD_ONLY
                    named.append(inspect.Parameter(field.name, kind, default=field.default))
        function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return function

    return shown


def check_names(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments by name that no function has.

    Args:
        arguments: Names that were given.
        known: Names that there are.

    Raises:
        TypeError: If there is another name, as Python raises for a function's own parameters.
    """
    names = sorted(known)
    for name in arguments:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f": did you mean `{near[0]}`?" if near else "."
            raise TypeError(
                f"There is no argument `{name}`{hint} Further arguments are {', '.join(names)}."
            )


def _hypermodel_class() -> type | None:
    """`keras_tuner.HyperModel`, or `None` if nobody has imported KerasTuner yet."""
    return getattr(sys.modules.get("keras_tuner"), "HyperModel", None)


def _take_apart(spec: ModelSpec, hypermodel: Any, base: Any) -> None:
    """Take the two functions of a HyperModel, unless it trains by itself."""
    if type(hypermodel).fit is not base.fit:
        raise SearchError(
            "A HyperModel given as `build` must not override fit()",
            type(hypermodel).__name__,
            "Pass its build alone, kbatch.HyperModel(own.build): kbatch trains, and the batch size "
            "that fit() draws is an axis of kbatch.Space",
        )
    object.__setattr__(spec, "build", hypermodel.build)
    object.__setattr__(spec, "declare", spec.declare or hypermodel.declare_hyperparameters)
