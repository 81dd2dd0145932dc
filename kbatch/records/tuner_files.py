"""KerasTuner's own files of a project: whether they are as it writes them.

It writes them in place, so a process that is killed may leave half a file.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
import os
from pathlib import Path
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecordError
from kbatch.records import files

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
OWN_ORACLE: dict[str, Any] = {  # what kbatch's oracle adds
    "rungs": dict[str, list[float]],
    "ended": dict[str, str],
    "varied": list[dict[str, Any]],
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


def found(project: Path) -> list[Path]:
    """Return the files with names of KerasTuner's, broken links and folders among them."""
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


def first_broken(project: Path) -> Path | None:
    """Return the first file that is not as KerasTuner writes it; `None` if there is none."""
    files = found(project)
    states = {file: _state(file) for file in files}
    for file, state in states.items():
        if state is None:
            return file
    if not files:
        return None
    of_oracle = project / "oracle.json"
    oracle = states.get(of_oracle)
    if oracle is None or not (_has(oracle, ORACLE) and _may_have(oracle, OWN_ORACLE)):
        return of_oracle
    for file, state in states.items():
        if file.name == "trial.json" and not _is_trial(state or {}, file, oracle):
            return file
    return None


def _is_trial(state: dict[str, Any], file: Path, oracle: dict[str, Any]) -> bool:
    """Whether a state is that of the trial whose folder it is in, and the oracle knows it.

    A kill between KerasTuner's two writes leaves a trial that the oracle never runs.
    """
    name = file.parent.name.removeprefix("trial_")
    if not (_has(state, TRIAL) and math.isfinite(state["score"] or 0.0)):
        return False
    return state["trial_id"] == name and name in oracle["start_order"]


def _state(file: Path) -> dict[str, Any] | None:
    """The state in a file of KerasTuner's, or `None` if it holds none."""
    with contextlib.suppress(RecordError, ValueError, RecursionError):
        state = json.loads(files.read(file) or b"")
        return state if isinstance(state, dict) else None
    return None


def _has(state: dict[str, Any], kinds_of: dict[str, Any]) -> bool:
    """Whether a state has all keys, with values of their types."""
    return kinds_of.keys() <= state.keys() and _may_have(state, kinds_of)


def _may_have(state: dict[str, Any], kinds_of: dict[str, Any]) -> bool:
    """Whether those keys that a state has hold values of their types."""
    return all(
        plain_text.fits_json(state[name], kinds_of[name]) for name in state if name in kinds_of
    )
