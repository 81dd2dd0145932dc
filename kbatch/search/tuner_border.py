"""Border to KerasTuner: its tuners, trials and errors, as far as a search touches them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import keras_tuner

from kbatch.axis import Range, is_fixed
from kbatch.errors import KbatchError, SearchError
from kbatch.models.maker import fresh_hyperparameters
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.records import files
from kbatch.records.store import Record
from kbatch.results.interval import widest_difference
from kbatch.results.loading import load_validation_examples
from kbatch.results.words import Ahead
from kbatch.runtime import device, keras_tuner_private, users_code
from kbatch.search import proposals
from kbatch.search.oracle import Oracle
from kbatch.search.proposals import Load
from kbatch.search.rungs import EPOCHS, GOES_ON_FROM, Share, gain_at_rung
from kbatch.space import Combination, Space

OBJECTIVE = "score"
RATE_OF_BUILD = "learning_rate"  # no axis has this name, so that it is the user's own
UNSCORED = -1.0  # below every score, so that KerasTuner writes only the first and the last weights


class Announcement:
    """Two callbacks that tell KerasTuner's checkpoint at which epochs to write the weights.

    Without a value for the objective, the checkpoint writes the weights at every epoch. Put one
    callback before the checkpoint and one behind it: no other callback sees the value.
    """

    def __init__(self) -> None:
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._say)
        self.after = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.pop(OBJECTIVE, None)
        )

    def _say(self, epoch: int, logs: dict[str, float]) -> None:
        """Log a score that is the best so far at the first and the last epoch only."""
        logs[OBJECTIVE] = 0.0 if self.before.model.stop_training else UNSCORED


def only(callbacks: list[Any], kind: type[Any]) -> Any:
    """Return the one callback of a class that KerasTuner gives to every trial."""
    found = [callback for callback in callbacks if isinstance(callback, kind)]
    if len(found) != 1:
        raise SearchError(
            "HyperModel.fit must be called by a tuner's search()",
            f"{len(found)} {kind.__name__}",
            "Without a tuner, use kbatch.train",
        )
    return found[0]


def check_one_process() -> None:
    """Refuse a search by KerasTuner's chief and workers."""
    if "KERASTUNER_ORACLE_IP" in os.environ:
        raise SearchError(
            "A search must run in one process",
            "KERASTUNER_ORACLE_IP is set (chief and workers)",
            'Unset it, and use kbatch.Tuner(executor="local") or "ray" for several GPUs',
        )


def check(tuner: Any) -> None:
    """Refuse tuners whose trials cannot be compared fairly."""
    device.check_strategy(strategy_of(tuner))
    overriding = [name for name in ("optimizer", "loss", "metrics") if getattr(tuner, name, None)]
    if overriding:
        raise SearchError(
            "A tuner must not compile the models again",
            ", ".join(f"{name}=" for name in overriding),
            "Compile so in `build` instead: the optimizer there is the baseline's",
        )
    objective = tuner.oracle.objective
    if getattr(objective, "name", None) != OBJECTIVE or objective.direction != "max":
        raise SearchError(
            "The tuner must maximize the score",
            f"objective={getattr(objective, 'name', objective)!r}",
            "Pass objective=kbatch.objective()",
        )


def ahead(tuner: Any, horizon: float, records: Sequence[Record], workers: int) -> Ahead:
    """Return the trainings that are ahead of a tuner's search."""
    oracle = tuner.oracle
    limits = [each for each in (oracle.max_trials, getattr(oracle, "most_trials", None)) if each]
    ended = len({record.trial for record in records if record.purpose == "search"})
    return Ahead(
        horizon,
        trials=max(min(limits) - ended, 0) if limits else None,
        baseline=int(all(record.purpose != "baseline" for record in records)),
        workers=workers,
        stops=isinstance(oracle, Oracle),
    )


def ends_in(tuner: Any) -> float:
    """Return the seconds after which a tuner begins no trial: what is left of its budget."""
    return getattr(tuner.oracle, "ends_at", math.inf) - time.monotonic()


def check_isolated(tuner: Any) -> None:
    """Refuse what a tuner cannot do if the models of its trials are made in other processes."""
    if strategy_of(tuner) is not None:
        raise SearchError(
            "Each isolated trial must train on one device",
            f"distribution_strategy={type(strategy_of(tuner)).__name__}",
            "Leave out the strategy, or isolated=True and executor",
        )
    if getattr(tuner, "max_model_size", None) is not None:
        raise SearchError(
            "The models of isolated trials are not made where the tuner could count their weights",
            f"max_model_size={tuner.max_model_size}",
            "Leave it out, or isolated=True and executor",
        )


def with_batch_of(space: Space, values: Mapping[str, Any]) -> Space:
    """Return the space, whose baseline has the batch size that is among the values given.

    A project that drew its batch size by `hp` has it there. Other names of kbatch's axes are those
    of an earlier search, whose recipe is a baseline of its own; a warning says so.
    """
    axes = sorted(name for name in values if name in space.reserved - {RATE_OF_BUILD})
    if not axes:
        return space
    if axes != ["batch_size"]:
        users_code.warn(
            f"The values of {', '.join(axes)} are left out: they are a recipe's. To compare with "
            "it, pass Space(baseline=kbatch.best_recipe(tuner)).",
        )
        return space
    size, own = values["batch_size"], space.baseline.batch_size
    if size == own:
        return space
    if own != Recipe().batch_size:
        raise SearchError(
            "The baseline must have one batch size",
            f"batch_size={size} in `values`, {own} in Space(baseline=…)",
            "Leave one of them out",
        )
    baseline = dataclasses.replace(space.baseline, batch_size=size)
    sizes = None if space.default_sizes else space.batch_size
    return dataclasses.replace(space, baseline=baseline, batch_size=sizes)


def said_by(hp: keras_tuner.HyperParameters, reserved: frozenset[str]) -> dict[str, Any]:
    """Return the values that a tuner's `hyperparameters=` fixes or gives as defaults."""
    axes = reserved - {RATE_OF_BUILD}
    own = [each for each in hp.space if each.name not in axes and each.name in hp.values]
    return {each.name: hp.values[each.name] for each in own if not _is_lowest(each)}


def fixed_batch_size(hp: keras_tuner.HyperParameters) -> int | None:
    """Return the batch size that a tuner's `hyperparameters=` fixes; `None` if it fixes none."""
    fixed = keras_tuner.engine.hyperparameters.Fixed
    found = [each for each in hp.space if each.name == "batch_size"]
    return found[0].value if found and isinstance(found[0], fixed) else None


def check_declared(hp: keras_tuner.HyperParameters, space: Space) -> None:
    """Refuse a tuner that takes up no hyperparameters besides those that it was given."""
    axes = [
        axis.name
        for axis, values in space.searched()
        if axis.only_if is None and not is_fixed(values)
    ]
    lacking = [name for name in axes if name not in hp.values]
    if lacking:
        raise SearchError(
            "A tuner must take up the axes of kbatch",
            f"tune_new_entries=False or allow_new_entries=False, without {', '.join(lacking)}",
            "Leave these out of the tuner",
        )


def _is_lowest(axis: Any) -> bool:
    """Whether the default of a hyperparameter is what KerasTuner takes where none is given."""
    values = list(axis.values)
    return len(values) > 1 and bool(axis.default == values[0])


def strategy_of(tuner: Any) -> Any:
    """Return the `tf.distribute.Strategy` that a tuner was given, or `None`."""
    return getattr(tuner, "distribution_strategy", None)


def scope(tuner: Any) -> AbstractContextManager[Any]:
    """Return the scope of a tuner's strategy, once `check` can pass it."""
    device.check_strategy(strategy_of(tuner))
    return device.strategy_scope(strategy_of(tuner))


def narrow(tuner: Any, sizes: Sequence[int], kept: list[int], examples: int) -> None:
    """Leave a tuner what its devices can train on, before it draws its first trial."""
    devices, space = device.replicas(), tuner.oracle.hyperparameters
    if devices > 1 and "jit_compile" in space:
        keras_tuner_private.fix_hyperparameter(space, "jit_compile", False)
    left_out = [size for size in sizes if size not in kept]
    if not left_out:
        return
    set_sizes(tuner, kept)
    names, shared = ", ".join(map(str, left_out)), f" and {devices} devices" * (devices > 1)
    users_code.warn(
        f"Batch sizes {names} are left out: there are {examples} training examples{shared}.",
    )


def set_sizes(tuner: Any, sizes: Sequence[int]) -> None:
    """Let a tuner draw these batch sizes, where it draws any."""
    for axis in tuner.oracle.hyperparameters.space:
        choice = isinstance(axis, keras_tuner.engine.hyperparameters.Choice)
        if choice and axis.name == "batch_size":
            keras_tuner_private.narrow_choice(axis, list(sizes))


def declare(hp: keras_tuner.HyperParameters, found: Mapping[str, Any]) -> None:
    """Declare the hyperparameters of a trial that `build` declared in another process."""
    if found:
        hp.merge(keras_tuner.HyperParameters.from_config(dict(found)), overwrite=False)


def declared(tuner: Any) -> Callable[[], list[Any]]:
    """Return a function that returns the hyperparameters that a tuner knows by then."""
    return lambda: list(tuner.oracle.hyperparameters.space)


def epochs_of_search(tuner: Any, seconds: float | None) -> dict[str, Any]:
    """Return `epochs=` of a search by Hyperband, which takes no other; empty for other tuners."""
    if not is_hyperband(tuner):
        return {}
    return {"epochs": None if seconds is not None else tuner.oracle.max_epochs}


def end(tuner: Any, seconds: float, max_trials: int | None) -> None:
    """Let a stock tuner begin no trial after so many seconds, or after so many trials."""
    oracle, ends_at = tuner.oracle, time.monotonic() + seconds
    populate = oracle.populate_space

    def populated(trial_id: str) -> dict[str, Any]:
        many = max_trials is not None and len(oracle.start_order) >= max_trials
        if not many and time.monotonic() < ends_at:
            return dict(populate(trial_id))
        last = _last_of_bracket(tuner)
        return {"status": "STOPPED" if last is None else "RUNNING", "values": last}

    oracle.ends_at, oracle.most_trials = ends_at, max_trials
    oracle.populate_space = populated


def is_hyperband(tuner: Any) -> bool:
    """Whether the trials of a tuner train for different numbers of epochs."""
    return isinstance(tuner.oracle, keras_tuner.oracles.HyperbandOracle)


def _last_of_bracket(tuner: Any) -> dict[str, Any] | None:
    """The values of the best trial of a bracket that was cut short, for the whole horizon.

    `None` if a trial has trained for it, or if none has ended.
    """
    oracle = tuner.oracle
    ended = [each for each in oracle.trials.values() if each.status == "COMPLETED"]
    if not is_hyperband(tuner) or not ended:
        return None
    whole = {EPOCHS: oracle.max_epochs}
    if any(each.hyperparameters.values.get(EPOCHS) == oracle.max_epochs for each in ended):
        return None
    best = max(ended, key=lambda each: each.score)
    return {**best.hyperparameters.values, **whole}


def begin_anew(hp: keras_tuner.HyperParameters) -> None:
    """Keep Hyperband from loading the weights of the shorter trial that one goes on with.

    They are those of its best measurement, without the optimizer's slots. With the same seed a
    training from the first update on is the one that would have gone on.
    """
    hp.values.pop(GOES_ON_FROM, None)


def question(of_trial: Any, goal: Goal, baseline: Record) -> Callable[[float], bool] | Share | None:
    """Return what tells whether a trial goes on.

    Returns a function of what the trial had gained at the rung; for Hyperband the share of the
    horizon that its epochs are of all; `None` for the oracle of any other stock tuner, whose trials
    all train to the horizon.
    """
    oracle = of_trial.tuner.oracle
    if is_hyperband(of_trial.tuner):
        epochs = of_trial.trial.hyperparameters.values.get(EPOCHS, oracle.max_epochs)
        return Share(epochs / oracle.max_epochs) if epochs < oracle.max_epochs else None
    if not isinstance(oracle, Oracle):
        return None
    oracle.know_start(_gain_at_rung(goal, baseline), baseline.score)
    examples = load_validation_examples(of_trial.tuner.project_dir)
    oracle.margin = widest_difference(goal.metric, examples)
    return oracle.standing(of_trial.trial.trial_id)


def tell(of_trial: Any, goal: Goal, record: Record) -> None:
    """Tell the oracle what a trial gained at the rung, and how it ended."""
    oracle = of_trial.tuner.oracle
    if isinstance(oracle, Oracle):
        gained = _gain_at_rung(goal, record)
        oracle.keep(of_trial.trial.trial_id, gained, record.outcome.ended)


def _gain_at_rung(goal: Goal, record: Record) -> float | None:
    return gain_at_rung(record.outcome.curve, goal.seconds, goal.gain)


def begin_at(
    tuner: Any,
    space: Space,
    recipe: Recipe,
    fitted: Callable[[Recipe], Recipe | None],
    today: Mapping[str, Any],
    default: Recipe,
) -> None:
    """Let the oracle of kbatch begin at the baseline, as far as the space can draw it.

    The default recipe is its second trial, if it differs.
    """
    if not isinstance(tuner.oracle, Oracle):
        return
    start, whole = drawable(space, recipe)
    second, _ = drawable(space, default)
    for own in (each for each in tuner.oracle.get_space().space if each.name in today):
        takes = proposals.takes(own, today[own.name])
        whole = whole and takes
        if takes:
            start[own.name] = today[own.name]

    def load(values: Mapping[str, Any]) -> Load | None:
        hp = fresh_hyperparameters(values)
        space.declare(hp)
        with scope(tuner):  # the oracle proposes outside of it, and it has several devices
            drawn = fitted(space.recipe(hp))
        if drawn is None:
            return None
        own = {name: value for name, value in values.items() if name not in space.reserved}
        accumulates = drawn.accumulation_steps > 1  # which takes memory of its own
        kind = (Combination.of(drawn), accumulates, drawn.augmentation, own)
        return Load(kind, drawn.examples_per_pass)

    tuner.oracle.begin_at(start, whole, load, {**start, **second})


def drawable(space: Space, recipe: Recipe) -> tuple[dict[str, Any], bool]:
    """The values of a recipe that the space can draw, and whether those are all."""
    found, whole = {}, True
    for axis, values in space.searched():
        if axis.is_drawn({"optimizer": recipe.optimizer}) and not is_fixed(values):
            own = space.rate_at_32(recipe) if axis.of else getattr(recipe, axis.name, None)
            held = axis.absent if own is None else own
            drawable = held is not None and _holds(values, held)
            whole = whole and drawable
            if drawable:
                found[axis.name] = held
    return found, whole


def _holds(values: Any, value: Any) -> bool:
    """Whether an axis can draw a value."""
    if isinstance(values, Range):
        return bool(values.lowest <= value <= values.highest)
    return value in values


def number(trial: Any) -> int:
    """Return the number of a trial, which KerasTuner keeps as text."""
    return int(trial.trial_id)


def name_values(hp: keras_tuner.HyperParameters, of_axes: Mapping[str, Any]) -> None:
    """Note what `build` was answered for hyperparameters with the name of an axis.

    A script reads them from `tuner.get_best_hyperparameters()`, and `build` of these values makes
    the model that it had.
    """
    for name, value in of_axes.items():
        hp.values.setdefault(name, value)


def bring(project: Path, checkpoint: str, missing: Path) -> None:
    """Copy the weights of an earlier trial for a trial that was answered from its record."""
    kept = project / checkpoint
    if not kept.resolve().is_relative_to(project.resolve()):
        return
    if kept.exists() and not missing.exists():
        missing.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, missing)


TRIAL = "A trial failed, and would fail again"
BUILD = "`build` failed, and would fail again"


@contextmanager
def border(what: str = TRIAL) -> Iterator[None]:
    """Turn every error inside the `with` block into one that ends a KerasTuner search at once."""
    try:
        yield
    except (keras_tuner.errors.FatalError, keras_tuner.errors.FailedTrialError):
        raise
    except KbatchError as error:
        raise _fatal(type(error))(error.must, error.received, error.do) from error
    except Exception as error:
        full = files.disk_trouble(error)
        if full is not None:
            raise _fatal(type(full))(full.must, full.received, full.do) from error
        raise keras_tuner.errors.FatalRuntimeError(
            f"{what}. {type(error).__name__}: {error}"
        ) from error


def watch_searches(
    kind: type, around: Callable[[Any, Any, Any, Any], AbstractContextManager[dict[str, Any]]]
) -> None:
    """Wrap `search` of all tuners, for hypermodels of one class only.

    KerasTuner calls no method of a hypermodel before the first trial, and none at all in a search
    that has finished already. So its own method has to be wrapped, to check the arguments first.
    """
    search = keras_tuner.engine.base_tuner.BaseTuner.search

    @functools.wraps(search)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.hypermodel, kind):
            return search(self, *args, **kwargs)
        try:
            with around(self.hypermodel, self, args, kwargs) as left:
                beside = getattr(self, "beside", _nothing)
                with beside(*args, **left):
                    return search(self, *args, **left)
        except KbatchError as error:
            raise error.with_traceback(None) from None  # the message is enough

    keras_tuner.engine.base_tuner.BaseTuner.search = watched


def _nothing(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    return nullcontext()


def called_by_a_tuner() -> bool:
    """Tell whether a tuner of KerasTuner is among the callers.

    That is so for the models that a search builds, and for those that a tuner loads with their
    weights. Functions of KerasTuner's `HyperModel` do not count: it wraps every `build`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = str(frame.f_globals.get("__name__", ""))
        if caller.startswith("keras_tuner.") and not caller.endswith(".hypermodel"):
            return True
        frame = frame.f_back
    return False


def _fatal(kind: type[KbatchError]) -> type[KbatchError]:
    """Return a subclass of an error class that ends a KerasTuner search.

    It has the name of the error class, which the user sees in the traceback.
    """
    if issubclass(kind, keras_tuner.errors.FatalError):
        return kind
    bases = (kind, keras_tuner.errors.FatalError)
    return type(kind.__name__, bases, {"__module__": kind.__module__})
