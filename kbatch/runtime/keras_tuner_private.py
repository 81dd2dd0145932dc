"""Private names of KerasTuner: the only module that uses them."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Iterator
from typing import Any


def fix_hyperparameter(space: Any, name: str, value: Any) -> None:
    """Leave a declared hyperparameter without conditions one value.

    `HyperParameters._hps` and `HyperParameters._space`, keras_tuner/src/engine/hyperparameters/
    hyperparameters.py, KerasTuner 1.4.8.
    """
    from keras_tuner.src.engine.hyperparameters.hp_types import Fixed

    fixed = Fixed(name, value)
    space._hps[name] = [fixed]
    space._space[:] = [fixed if each.name == name else each for each in space._space]
    space.values[name] = value


@contextlib.contextmanager
def axes_read_once() -> Iterator[None]:
    """Read equal hyperparameters once while the trials of a project are loaded.

    `Trial.load` makes each of a trial's hyperparameters anew, which takes long for thousands of
    trials. `hp_types.deserialize`, keras_tuner/src/engine/hyperparameters/hp_types/__init__.py,
    KerasTuner 1.4.8.
    """
    from keras_tuner.src.engine.hyperparameters import hp_types

    read = functools.cache(lambda written: deserialize(json.loads(written)))
    deserialize = hp_types.deserialize

    def read_once(config: dict[str, Any]) -> Any:
        # each trial has its own, since some are narrowed
        return copy.copy(read(json.dumps(config)))

    hp_types.deserialize = read_once
    try:
        yield
    finally:
        hp_types.deserialize = deserialize


def narrow_choice(choice: Any, values: list[Any]) -> None:
    """Leave a declared `Choice` these values only, and a default among them.

    `Choice._values` and `Choice._default`, keras_tuner/src/engine/hyperparameters/hp_types/
    choice_hp.py, KerasTuner 1.4.8.
    """
    choice._values = values
    if choice._default not in values:
        choice._default = values[-1]


def has_no_default(hp: Any) -> bool:
    """Tell whether an `Int`, `Float` or `Choice` was made without `default=`.

    `HyperParameter._default`, keras_tuner/src/engine/hyperparameters/hyperparameter.py, KerasTuner
    1.4.8. A `Fixed` and a `Boolean` always have one.
    """
    return hp._default is None and hp.default is not None


def save_best_epoch() -> type[Any]:
    """Return the class of the callback that saves a trial's weights.

    Of `keras_tuner/src/engine/tuner_utils.py`, KerasTuner 1.4.8.
    """
    from keras_tuner.src.engine.tuner_utils import SaveBestEpoch

    return SaveBestEpoch  # type: ignore[no-any-return]


def tuner_callback() -> type[Any]:
    """Return the class of the callback that reports a trial's logs to its tuner.

    Of `keras_tuner/src/engine/tuner_utils.py`, KerasTuner 1.4.8.
    """
    from keras_tuner.src.engine.tuner_utils import TunerCallback

    return TunerCallback  # type: ignore[no-any-return]


def search_as(tuner: Any, name: str, args: Any, kwargs: Any) -> None:
    """Let a tuner make trials under another name, until its oracle has no more.

    The loop of `BaseTuner.search` and `BaseTuner._try_run_and_update_trial`,
    keras_tuner/src/engine/base_tuner.py, KerasTuner 1.4.8.
    """
    while True:
        tuner.pre_create_trial()
        trial = tuner.oracle.create_trial(name)
        if trial.status == "STOPPED":
            return
        if trial.status != "IDLE":
            tuner.on_trial_begin(trial)
            tuner._try_run_and_update_trial(trial, *args, **kwargs)
            tuner.on_trial_end(trial)


def unlock(oracle: Any) -> None:
    """Free the lock of an oracle, which an error inside of its methods leaves locked.

    `LOCKS` and `THREADS`, keras_tuner/src/engine/oracle.py, KerasTuner 1.4.8.
    """
    from keras_tuner.src.engine import oracle as module

    module.LOCKS.pop(oracle, None)
    module.THREADS.pop(oracle, None)


def set_project_folder(oracle: Any, folder: str) -> None:
    """Give an oracle that has no tuner the folder of its project.

    `Oracle._set_project_dir`, keras_tuner/src/engine/oracle.py, KerasTuner 1.4.8.
    """
    oracle._set_project_dir(folder, "project")
