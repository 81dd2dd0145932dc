"""The tuners of the driver, and the repair of their broken files."""

from __future__ import annotations

import contextlib
import datetime
import io
from pathlib import Path

import keras_tuner

from kbatch.driver.options import PROJECT
from kbatch.hypermodel import HyperModel, objective
from kbatch.records import files, tuner_files
from kbatch.search_tuner import Tuner, go_through

# The Gaussian process takes about a third of the variance of normalized scores for noise. Of 69
# recipes of the case study, each trained with two seeds (photographs, 20 s, one core), the rankings
# of the two seeds correlate at 0.5 only.
SCORE_NOISE = 0.3


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
    aside = None if tuner_files.first_broken(project) is None else set_aside(project)
    if aside is None and tuner_files.found(project):
        # KerasTuner raises errors of any kind on states that it did not write.
        with contextlib.suppress(Exception):
            tuner = tuner_of(kind, hypermodel, trials, folder, seed)
            go_through(tuner.oracle, hypermodel)
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
        for file in tuner_files.found(project):
            target = aside / file.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    except OSError as error:
        raise files.refusal(error) from error
    return aside
