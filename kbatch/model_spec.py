"""Model specification: a build function, and what its models are compiled and seeded with."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from kbatch.errors import ModelError, SearchError, made_in_one_frame
from kbatch.recipe_words import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


OF_TUNERS = ("tuner/", "kbatch_")  # names by which tuners keep notes of their own
NUMBERED = re.compile(r"trial_.+")


def values_of(given: Any) -> dict[str, Any]:
    """Return the values of hyperparameters by name."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (str, os.PathLike)):
        return _without_notes(_best_of_folder(Path(given)))
    if hasattr(given, "oracle") and hasattr(given, "get_best_hyperparameters"):
        best = given.get_best_hyperparameters(1)
        if not best:
            raise SearchError(
                "A tuner given as `values` must have a trial that ended well",
                "none",
                'Search with it before, or pass {"units": 64}, say',
            )
        return _without_notes(best[0].values)
    if hasattr(given, "space") and isinstance(getattr(given, "values", None), Mapping):
        return _without_notes(given.values)
    raise SearchError(
        "`values` must be a mapping from hyperparameter to value, keras_tuner.HyperParameters, a "
        "tuner or its folder",
        type(given).__name__,
        'Pass {"units": 64}, or `hp`',
    )


def values_of_text(text: str) -> dict[str, Any]:
    """Return the values of hyperparameters that a text gives, or the folder that it names."""
    if Path(text).is_dir():
        return values_of(text)
    pairs = [each.partition("=") for each in text.split(",")]
    for name, equals, value in pairs:
        if not (name.strip() and equals and value.strip()):
            raise SearchError(
                "Values must be name=value, separated by commas, or the folder of a tuner's "
                "project",
                text,
                "Pass units=32,lr=0.0001, say",
            )
    return {name.strip(): _literal(value.strip()) for name, _, value in pairs}


def text_of_values(values: Mapping[str, Any]) -> str:
    """Return values by name, such as "units=32, lr=0.0001"."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )


def _literal(word: str) -> Any:
    """A number, a boolean or no value as JSON writes them; any other word is itself."""
    try:
        return json.loads(word.lower() if word in ("True", "False") else word)
    except ValueError:
        return word


def _without_notes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the user's and of kbatch's axes, without what tuners keep among them."""
    return {name: value for name, value in values.items() if not name.startswith(OF_TUNERS)}


def _best_of_folder(folder: Path) -> Mapping[str, Any]:
    """The values of the best trial of a project, by the objective of its tuner."""
    trials = [trial for trial in map(_trial, _files(folder)) if trial is not None]
    if not trials:
        raise SearchError(
            "A folder given as `values` must be the project of a tuner with a trial that ended",
            f"{folder}: {'no such trial in it' if folder.is_dir() else 'no such folder'}",
            "Pass the folder directory/project_name of the tuner",
        )
    direction = _direction(trials)
    if direction is None:
        raise SearchError(
            "A folder given as `values` must tell whether its objective is minimized or maximized",
            f"{folder}: its trials leave both open",
            "Pass the tuner itself, or the values of its best trial",
        )
    best = (max if direction == "max" else min)(trials, key=lambda trial: trial["score"])
    values: Mapping[str, Any] = best["hyperparameters"]["values"]
    return values


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("trial_*/trial.json")) if folder.is_dir() else []
    return [file for file in found if NUMBERED.fullmatch(file.parent.name)]


def _trial(file: Path) -> dict[str, Any] | None:
    """A trial that ended with a score; `None` for any other, and for what is no trial."""
    try:
        state = json.loads(file.read_bytes())
        score, values = state["score"], state["hyperparameters"]["values"]
        ended = state["status"] == "COMPLETED" and isinstance(values, dict)
        finite = isinstance(score, (int, float)) and math.isfinite(score)
        return state if ended and finite else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _direction(trials: list[dict[str, Any]]) -> str | None:
    """The direction of the metric whose best value is the score of each trial."""
    found = [_directions(trial) for trial in trials]
    common = set.intersection(*map(set, found))
    directions = {found[0][name] for name in common}
    return directions.pop() if len(directions) == 1 else None


def _directions(trial: Mapping[str, Any]) -> dict[str, str]:
    """The directions of the metrics whose best value is the score of a trial, by name."""
    metrics = trial.get("metrics", {}).get("metrics", {})
    return {
        name: str(metric["direction"])
        for name, metric in metrics.items()
        if _best_value(metric) == trial["score"]
    }


def _best_value(metric: Mapping[str, Any]) -> float | None:
    """The best value of a metric over the steps of a trial, each the mean of its executions."""
    steps = [each["value"] for each in metric.get("observations", ())]
    means = [sum(values) / len(values) for values in steps if values]
    means = [mean for mean in means if not math.isnan(mean)]
    if not means:
        return None
    return max(means) if metric.get("direction") == "max" else min(means)


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
    """Refuse arguments by name that no function has."""
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
