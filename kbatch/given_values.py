"""Given values: the hyperparameters of a user's model, read from what holds them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbatch.errors import SearchError

OF_TUNERS = ("tuner/", "kbatch_")  # names by which tuners keep notes of their own
NUMBERED = re.compile(r"trial_.+")


def values_of(given: Any) -> dict[str, Any]:
    """Return the values of hyperparameters by name.

    Args:
        given: Mapping; `keras_tuner.HyperParameters`; a tuner, whose best trial has the values; or
            the folder of a tuner's project, of which only JSON is read. `None` for no values.

    Raises:
        SearchError: If there are no values in it.
    """
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
    """Return the values of hyperparameters that a text gives, or the folder that it names.

    Args:
        text: String, `name=value` separated by commas, or the folder of a tuner's project.

    Raises:
        SearchError: If it is neither.

    >>> values_of_text("units=32,lr=1e-4,norm=true,act=relu")
    {'units': 32, 'lr': 0.0001, 'norm': True, 'act': 'relu'}
    """
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
