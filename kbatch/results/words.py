"""Words: recipes, scores, endings and times as text, and the time that trainings take."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.axes import RESERVED
from kbatch.outcome import STOPPED, Outcome
from kbatch.records.store import BASELINE_TRIAL, Record

# The unit of every score that is shown, also of KerasTuner's output and of the column `score`.
SCORE = "score/s"
ENDED = {"stopped": "stopped at a rung"}  # where the name of an ending says too little
CHANGED = 1e-3  # relative change of a learning rate that is worth telling; chosen by hand


def score_text(score: float, like: float | None = None) -> str:
    """Return a score per second to three digits.

    Example:
    >>> score_text(0.035312), score_text(0.0004, like=0.035312), score_text(0.0), score_text(749.2)
    ('0.0353', '0.0004', '0', '749')
    """
    model = abs(score if like is None else like)
    digits = max(0, 2 - math.floor(math.log10(model))) if model > 0 and math.isfinite(model) else 0
    return f"{score:,.{digits}f}"


def ended_text(outcome: Outcome) -> str:
    """Return how a training ended, in words.

    If it ended before its horizon, the seconds are named. So are a changed learning rate and
    updates that loss scaling skipped.

    >>> ended_text(Outcome("callback", train_seconds=2.31, stopped_by="EarlyStopping"))
    'EarlyStopping after 2.31 s'
    """
    words = outcome.stopped_by or ENDED.get(outcome.ended, outcome.ended.replace("_", " "))
    if outcome.ended != "horizon" and outcome.train_seconds:
        words += f" after {outcome.train_seconds:.3g} s"
    if _changed(outcome.learning_rate, outcome.final_learning_rate):
        words += f", rate then {outcome.final_learning_rate:.3g}"
    if outcome.skipped_updates:
        words += f", {outcome.skipped_updates} updates skipped"
    return words


def ended_by(outcome: Outcome) -> str:
    """Return what ended a training, as the end of a sentence about it.

    >>> ended_by(Outcome("horizon")), ended_by(Outcome("stopped", train_seconds=0.5))
    ('ended by horizon', 'stopped at a rung after 0.5 s')
    """
    words = ended_text(outcome)
    return words if outcome.ended in ENDED else f"ended by {words}"


def _changed(rate: float | None, final: float | None) -> bool:
    return rate is not None and final is not None and not math.isclose(rate, final, rel_tol=CHANGED)


def own_values(record: Record) -> dict[str, Any]:
    """Return the user's own hyperparameters of a training.

    In records of old versions the baseline has none: it took the defaults.
    """
    return {
        name: value
        for name, value in record.values.items()
        if name not in RESERVED and not name.startswith("tuner/")
    }


def own_words(record: Record) -> str:
    """Return the user's own hyperparameters in words, such as "units 64, dropout 0.2"."""
    return words_of(own_values(record))


def words_of(values: Mapping[str, Any]) -> str:
    """Return values by name in words, such as "units 64, dropout 0.2"."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def whose(trial: int) -> str:
    """Return whose a training is: `the baseline`, or `trial 3`."""
    return "the baseline" if trial == BASELINE_TRIAL else f"trial {trial}"


def counted(number: int, thing: str) -> str:
    """Return a number of things in words: `1 trial`, or `3 trials`."""
    return f"1 {thing}" if number == 1 else f"{number} {thing}s"


def versions_of(record: Record) -> str:
    """Return the versions of the libraries that trained, in words."""
    return ", ".join(f"{name} {number}" for name, number in record.versions.items())


def apart(one: Record, other: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the own values in which two trainings differ: those of the one, and of the other.

    A value that only one of them has is of no effect unless another differs, such as the number of
    layers: then it counts.
    """
    first, second = own_values(one), own_values(other)
    if all(first[name] == second[name] for name in first.keys() & second.keys()):
        return {}, {}
    return (
        {name: value for name, value in first.items() if second.get(name) != value},
        {name: value for name, value in second.items() if first.get(name) != value},
    )


# The mean share of the horizon that a trial trains for if poor ones are stopped, and the number of
# trials that it stands for beside those that ended. Ten horizons of recorded tables hold 13 to 15.
USUAL_SHARE, USUAL_TRIALS = 0.7, 2
MORE_PROBES = 2  # after the first; three in all is the median (docs/benchmarks.md)
WARM_UP = 3  # trainings beside which the first of a process does not count
RUNG = 1 / 3  # of the horizon, where poor trials are stopped
# Between two trainings of one run; a longer gap is a search that was stopped and went on later.
LONGEST_GAP = 60.0
STAMP = 1.0  # seconds to which records say when a training ended
MINUTE, HOUR = 60, 3600
# Parts of an outcome's seconds beside training, in words.
BESIDE = {"first_step": "first steps", "validation": "validation"}


@dataclass(frozen=True)
class Taken:
    """The seconds that one training took."""

    train_seconds: float  # on the training clock
    validation_seconds: float  # of the measurements, which grow with the training
    wall_seconds: float  # all of it, and what comes between it and the training before
    of_trial: bool = False  # whether it was a trial, which may be stopped at a rung
    stopped: bool = False

    @classmethod
    def of(cls, record: Record, wall_seconds: float | None = None) -> Taken | None:
        """Return what a training took; `None` if that is unknown."""
        outcome = record.outcome
        total = outcome.seconds.get("total") if wall_seconds is None else wall_seconds
        if total is None:
            return None
        validation = outcome.seconds.get("validation", 0.0)
        of_trial, stopped = record.purpose == "search", outcome.ended == STOPPED
        return cls(outcome.train_seconds, validation, total, of_trial, stopped)


def taken_of(records: Sequence[Record]) -> list[Taken]:
    """Return what each training took, with what came between it and the one that ended before."""
    found, reached = list[Taken | None](), math.inf
    for record in records:
        wall, span = record.outcome.seconds.get("total"), _span(record)
        if wall is not None and span is not None:
            began, ended = span
            if -STAMP < began - reached <= LONGEST_GAP:
                wall += began - reached
            reached = ended
        found.append(Taken.of(record, wall))
    return [taken for taken in found if taken is not None]


@dataclass(frozen=True)
class Ahead:
    """The trainings that are ahead."""

    horizon: float  # training seconds of each that is not stopped
    trials: int | None = 0  # trials of a search; `None` if only a budget ends them
    whole: int = 0  # confirmations, which are never stopped at a rung
    baseline: int = 0  # trainings of the baseline before the first trial: 0 or 1
    workers: int = 1  # how many are made at once
    stops: bool = False  # whether poor trials are stopped at a rung

    @property
    def least_seconds(self) -> float:
        """Seconds that are certain: of the training clock alone, with poor trials stopped."""
        share = RUNG if self.stops else 1.0
        return self._in_turns(share * self.horizon, self.horizon)

    @property
    def is_over(self) -> bool:
        """Whether no training is left."""
        return self.trials == 0 and not self.whole and not self.baseline

    @property
    def parts(self) -> str:
        """The trainings in words, such as `the baseline, 10 trials of 8 training seconds each`."""
        words = ["the baseline"] if self.baseline else []
        if self.trials is None:
            words.append("trials")
        else:
            words.append(counted(self.trials, "trial"))
        up_to = "at most " if self.stops else ""
        return f"{', '.join(words)} of {up_to}{self.horizon:.3g} training seconds each"

    def seconds(self, taken: Sequence[Taken]) -> float | None:
        """Return the seconds by the wall clock, from what trainings took; `None` if unknown.

        A training that is not stopped takes what those before it took. A trial takes what does not
        depend on its length (building, tracing, the first step, what lies between two trainings),
        and its share of the horizon with its measurements. The first training of a process warms
        TensorFlow up, so it does not count beside three others.
        """
        if not taken or self.trials is None:
            return None
        counted = taken[1:] if len(taken) > WARM_UP else taken
        fixed = statistics.fmean(
            max(each.wall_seconds - each.train_seconds - each.validation_seconds, 0.0)
            for each in counted
        )
        trained = sum(each.train_seconds for each in counted)
        measured = sum(each.validation_seconds for each in counted)
        rate = self.horizon * (1 + (measured / trained if trained else 0.0))
        walls = [each.wall_seconds for each in counted if not each.stopped]
        whole = statistics.fmean(walls or [fixed + rate])
        return self._in_turns(fixed + self._share(taken) * rate if self.stops else whole, whole)

    def _share(self, taken: Sequence[Taken]) -> float:
        """The share of the horizon that a trial is expected to train if poor ones are stopped."""
        shares = [each.train_seconds / self.horizon for each in taken if each.of_trial]
        return statistics.fmean([*shares, *[USUAL_SHARE] * USUAL_TRIALS])

    def _in_turns(self, of_trial: float, of_whole: float) -> float:
        """The seconds of all trainings, made by workers at once, from the seconds of each."""
        trials = math.ceil((self.trials or 0) / self.workers)
        return trials * of_trial + (self.baseline + math.ceil(self.whole / self.workers)) * of_whole


def race_trainings(looks: Sequence[int], candidates: int) -> list[int]:
    """Return how many trainings a race makes up to each of its looks, if it goes on to the last."""
    made = []
    for begun, look in zip((0, *looks), looks, strict=False):
        made.append((look - begun) * (1 + candidates))
        candidates = math.ceil(candidates / 2)
    return made


def wall_seconds(records: Iterable[Record]) -> float | None:
    """Return the seconds by the wall clock that trainings took; `None` if they are unknown.

    What lies between two trainings of one run counts, trainings at once count once, and the time
    between a search that was stopped and its next run does not count.
    """
    spans = sorted(span for span in map(_span, records) if span is not None)
    if not spans:
        return None
    seconds, reached = 0.0, -math.inf
    for began, ended in spans:
        if began - reached > LONGEST_GAP:
            reached = began
        seconds += max(ended - reached, 0.0)
        reached = max(reached, ended)
    return seconds


def finder_seconds(begin: float, probe: float, steps: Sequence[float], confirmed: int) -> float:
    """Return the seconds that a finder of the largest batch takes after its first probe.

    It usually tries two more sizes, and confirms one in a fresh process.
    """
    if not confirmed or not steps:
        return MORE_PROBES * probe
    later = statistics.median(steps[1:] or steps)
    return MORE_PROBES * probe + begin + steps[0] + confirmed * later


def alike_seconds(
    taken: Sequence[tuple[Hashable, float]], ahead: Sequence[Hashable]
) -> float | None:
    """Return the seconds of trainings of several kinds; `None` before one has ended.

    Each takes as long as those of its kind that ended; where there is none, as the mean of all.
    """
    if not taken:
        return None
    by_kind: dict[Hashable, list[float]] = {}
    for kind, seconds in taken:
        by_kind.setdefault(kind, []).append(seconds)
    mean = statistics.fmean(seconds for _, seconds in taken)
    return sum(statistics.fmean(by_kind.get(kind, [mean])) for kind in ahead)


def time_words(seconds: float) -> str:
    """Return a time in words.

    >>> time_words(42), time_words(213), time_words(6000)
    ('42 s', '3.5 minutes', '1.7 hours')
    """
    if seconds < 1.5 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * HOUR:
        return f"{seconds / MINUTE:.1f} minutes"
    return f"{seconds / HOUR:.1f} hours"


def spent_words(records: Sequence[Record]) -> str:
    """Return how long trainings took, on the training clock and by the wall clock, and for what."""
    seconds = sum(record.outcome.train_seconds for record in records)
    trained, wall = f"{seconds:,.0f} training seconds", wall_seconds(records)
    if wall is None:
        return trained
    beside = {
        words: sum(record.outcome.seconds.get(part, 0.0) for record in records)
        for part, words in BESIDE.items()
    }
    rest = wall - seconds - sum(beside.values())
    told = f"{trained}, {time_words(wall)} by the wall clock"
    if rest < 0 or not any(beside.values()):  # several were made at once, or old records
        return told
    parts = [f"{words} {time_words(taken)}" for words, taken in beside.items()]
    return f"{told} ({', '.join(parts)}, all else {time_words(rest)})"


def _span(record: Record) -> tuple[float, float] | None:
    """When a training began and ended, in seconds; `None` if that is unknown."""
    total = record.outcome.seconds.get("total")
    if total is None or not record.finished_at:
        return None
    try:
        ended = datetime.datetime.fromisoformat(record.finished_at).timestamp()
    except ValueError:
        return None
    return ended - total, ended
