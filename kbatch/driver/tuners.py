"""The tuners of the driver, and the repair of their broken files."""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import io
import json
import os
from pathlib import Path
from typing import Any

import keras_tuner

from kbatch import json_form
from kbatch.driver.options import PROJECT
from kbatch.errors import RecordError
from kbatch.hypermodel import HyperModel, objective
from kbatch.records import atomic_file, disk
from kbatch.search_tuner import Tuner

# The Gaussian process takes about a third of the variance of normalized scores for noise. Of 69
# recipes of the case study, each trained with two seeds (photographs, 20 s, one core), the rankings
# of the two seeds correlate at 0.5 only.
SCORE_NOISE = 0.3

# The keys of KerasTuner's states and their types, from version 1.4.7 on.
ORACLE: dict[str, Any] = {
    "ongoing_trials": dict[str, str],
    "hyperparameters": dict[str, Any],
    "start_order": list[str],
    "end_order": list[str],
    "run_times": dict[str, int],
    "retry_queue": list[str],
    "seed": int,
    "seed_state": int,
    "tried_so_far": list[str],
    "id_to_hash": dict[str, str | None],
    "display": dict[str, Any],
}
TRIAL: dict[str, Any] = {
    "trial_id": str,
    "hyperparameters": dict[str, Any],
    "metrics": dict[str, Any],
    "score": float | None,
    "best_step": int | None,
    "status": str,
    "message": str | None,
}


def tuner_of(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> keras_tuner.Tuner:
    """Return a tuner over the hypermodel, in the folder `search`.

    Args:
        kind: `"kbatch"`, `"random"`, `"bayesian"` or `"grid"`.
        hypermodel: The hypermodel.
        trials: Integer, how many trials at most.
        folder: Folder of the results.
        seed: Integer, seed of the tuner's draws.
    """
    if kind == "kbatch":
        with contextlib.redirect_stdout(io.StringIO()):  # as below
            return Tuner(hypermodel, directory=str(folder), project_name=PROJECT, tuner_seed=seed)
    common = {
        "objective": objective(),
        "max_trials": trials,
        "directory": str(folder),
        "project_name": PROJECT,
    }
    common["seed"] = seed + 1  # KerasTuner takes 0 for no seed at all
    with contextlib.redirect_stdout(io.StringIO()):  # "Reloading Tuner from …"
        if kind == "bayesian":
            return keras_tuner.BayesianOptimization(
                hypermodel, num_initial_points=max(3, trials // 3), alpha=SCORE_NOISE, **common
            )
        return {"random": keras_tuner.RandomSearch, "grid": keras_tuner.GridSearch}[kind](
            hypermodel, **common
        )


def ending(kind: str, trials: int) -> dict[str, int]:
    """Return the arguments that end the search of a tuner: stock ones were told when made.

    Args:
        kind: `"kbatch"`, `"random"`, `"bayesian"` or `"grid"`.
        trials: Integer, how many trials at most.
    """
    return {"max_trials": trials} if kind == "kbatch" else {}


def opened(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> tuple[keras_tuner.Tuner, Path | None]:
    """Return the tuner, and the folder that broken files of KerasTuner were moved to, or `None`.

    KerasTuner writes its files in place, so a process that is killed may leave half a file, on
    which it cannot start. The records and the kept weights stay. With the same seed it draws the
    same trials again, which the records answer.

    Args:
        kind: `"kbatch"`, `"random"`, `"bayesian"` or `"grid"`.
        hypermodel: The hypermodel.
        trials: Integer, how many trials at most.
        folder: Folder of the results.
        seed: Integer, seed of the tuner's draws.
    """
    project = folder / PROJECT
    aside = None if readable(project) else set_aside(project)
    if aside is None and _files(project):
        # KerasTuner raises errors of any kind on states that it did not write.
        with contextlib.suppress(Exception):
            tuner = tuner_of(kind, hypermodel, trials, folder, seed)
            _go_through(tuner, hypermodel)
            return tuner, None
        aside = set_aside(project)
    return tuner_of(kind, hypermodel, trials, folder, seed), aside


def set_aside(project: Path) -> Path:
    """Move KerasTuner's own files out of the way.

    Args:
        project: Folder of the KerasTuner project.

    Returns:
        The folder that they were moved to.

    Raises:
        RecordError: If they cannot be moved.
    """
    name = f"set-aside-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    aside, number = project / name, 0
    while aside.exists():
        number += 1
        aside = project / f"{name}-{number}"
    try:
        for file in _files(project):
            target = aside / file.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    except OSError as error:
        raise disk.refusal(error) from error
    return aside


def readable(project: Path) -> bool:
    """Return whether KerasTuner's own files are as it writes them, or missing.

    Args:
        project: Folder of the KerasTuner project.
    """
    files = _files(project)
    states = {file: _state(file) for file in files}
    oracle = states.get(project / "oracle.json")
    if not files:
        return True
    if oracle is None or not _of_kinds(oracle, ORACLE):
        return False
    trials = {
        file.parent.name.removeprefix("trial_"): state
        for file, state in states.items()
        if file.name == "trial.json"
    }
    if None in states.values():
        return False
    for name, state in trials.items():
        if state and not (_of_kinds(state, TRIAL) and state["trial_id"] == name):
            return False
    # A kill between its two writes leaves a trial that the oracle does not know and never runs.
    return trials.keys() <= set(oracle["start_order"])


def _go_through(tuner: keras_tuner.Tuner, hypermodel: HyperModel) -> None:
    """Use the restored state as a search will; an error means that its files are broken."""
    declared = keras_tuner.HyperParameters()
    hypermodel.declare_hyperparameters(declared)
    known = {each.name for each in tuner.oracle.get_space().space}
    if not {each.name for each in declared.space} <= known:
        raise ValueError(known)
    for name in (*tuner.oracle.start_order, *tuner.oracle.end_order):
        hypermodel.space.recipe(tuner.oracle.trials[name].hyperparameters)
    tuner.oracle.get_best_trials(1)


def _files(project: Path) -> list[Path]:
    """The files with names of KerasTuner's, broken links and folders among them."""
    try:
        names = sorted(os.listdir(project))
    except OSError:
        return []
    own = [
        project / name
        for name in names
        if name == "oracle.json" or fnmatch.fnmatch(name, "tuner*.json")
    ]
    trials = [project / name / "trial.json" for name in names if name.startswith("trial_")]
    return [*own, *(file for file in trials if os.path.lexists(file))]


def _state(file: Path) -> dict[str, Any] | None:
    """The state in a file of KerasTuner's, or `None` if it holds none."""
    with contextlib.suppress(RecordError, ValueError, RecursionError):
        state = json.loads(atomic_file.read(file) or b"")
        return state if isinstance(state, dict) else None
    return None


def _of_kinds(state: dict[str, Any], kinds_of: dict[str, Any]) -> bool:
    """Whether a state has all keys, with values of their types."""
    return all(
        name in state and json_form.fits(state[name], kind) for name, kind in kinds_of.items()
    )
