"""Tuners: the stock KerasTuner tuners as the driver sets them up, and what to do when their files are broken."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
from pathlib import Path

import keras_tuner

from kbatch.case_study.options import PROJECT
from kbatch.hypermodel import HyperModel, objective

# Two trainings of one recipe with different seeds rank alike at a correlation of only 0.5 (shared measurements), so a
# third of the variance of normalized scores is told to the Gaussian process as noise.
SCORE_NOISE = 0.3


def tuner_of(kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int) -> keras_tuner.Tuner:
    """A stock tuner over the hypermodel, in the folder `search`.

    Args:
        kind: `"random"`, `"bayesian"` or `"grid"`.
        hypermodel: What to search.
        trials: Integer, how many trials at most.
        folder: Where its project is kept.
        seed: Integer, seed of the tuner's draws.
    """
    common = {"objective": objective(), "max_trials": trials, "directory": str(folder), "project_name": PROJECT}
    common["seed"] = seed + 1  # KerasTuner takes 0 for no seed at all
    with contextlib.redirect_stdout(io.StringIO()):  # "Reloading Tuner from …"
        if kind == "bayesian":
            return keras_tuner.BayesianOptimization(hypermodel, num_initial_points=max(3, trials // 3), alpha=SCORE_NOISE, **common)
        return {"random": keras_tuner.RandomSearch, "grid": keras_tuner.GridSearch}[kind](hypermodel, **common)


def set_aside_broken(project: Path) -> Path | None:
    """Move KerasTuner's own files out of the way if one of them cannot be read, and say where to.

    KerasTuner writes them in place, so a process that is killed may leave half a file, on which it cannot start. The
    records and the kept weights stay; with the same seed it draws the same trials again, which are then answered from
    the records.

    Args:
        project: Folder of the KerasTuner project.

    Returns:
        The folder they were moved to, or `None` if all can be read.
    """
    files = [*project.glob("oracle.json"), *project.glob("tuner*.json"), *project.glob("trial_*/trial.json")]
    oracle = project / "oracle.json"
    broken = any(not _readable(file) for file in files) or (files and not oracle.exists())
    if files and not broken:  # a kill between its two writes leaves a trial that the oracle does not know and never runs
        known = json.loads(oracle.read_text(encoding="utf-8")).get("start_order")
        broken = known is not None and any(file.parent.name.removeprefix("trial_") not in known for file in files if file.name == "trial.json")
    if not broken:
        return None
    aside = project / f"set-aside-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    for file in files:
        target = aside / file.relative_to(project)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    return aside


def _readable(file: Path) -> bool:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True
