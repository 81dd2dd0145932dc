"""Outcome: what a training measured, the marks at which it does, its goal, and its score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kbatch import plain_text
from kbatch.errors import RecordError
from kbatch.plain_text import HUGE, Count, Name, Number, Seconds, SecondsAbove0, Text

SCORED = ("horizon", "target", "callback")  # trainings that show what their recipe is worth
LONGEST_CURVE = 10_000  # measurements; a training makes a dozen
OUT_OF_MEMORY = "out_of_memory"
STOPPED = "stopped"  # by the search, at a rung: its score so far is the least that it is worth


@dataclass(frozen=True)
class Outcome:
    """Measurements of one training of one recipe.

    `kbatch.train` returns one; the outcomes of a search stand in its records.

    Attributes:
        ended: String, the reason for the end: `"horizon"`, `"target"`, `"callback"` (one of the
            user's callbacks stopped the training), `"stopped"` (by the search, at a rung),
            `"out_of_memory"`, `"nan"`, or `"crashed"` (the process died twice during this
            training). Records of old versions may say `"error"`.
        curve: Tuple of `(train_seconds, value)`, one pair for each measurement of the metric on the
            validation data.
        value: Float, the metric of the weights that were kept: the value held, or the last value
            measured if there are fewer than three. `None` if nothing was measured.
        metrics: Dict, all metrics of the validation pass that gave `value`, such as
            `{"val_loss": 0.4}`.
        train_seconds: Float, seconds on the training clock.
        median_update_seconds: Float, median seconds of a weight update, the first left out. `None`
            before two updates.
        updates: Integer, number of weight updates.
        examples: Integer, number of examples trained on.
        seconds: Dict, wall-clock seconds by part, from the call of `build` to the end of `fit`:
            `build`, `data`, `input_probe` (timing the input pipeline by itself), `setup`,
            `first_step` (seconds of the first update above the median: tracing, compiling,
            autotuning), `training`, `stopped` (the process stood still within updates, which the
            clock leaves out), `validation`, `callbacks`, `checkpoint` and `finish`; and `total`,
            which is measured separately.
        peak_bytes: Integer, peak device memory above what was in use before the training. `None` if
            the device does not report its memory. On a GPU the first update and the first
            validation are left out, in which cuDNN tries its algorithms.
        utilisation: Dict, load of the NVIDIA GPU during the training: `mean_gpu_percent`,
            `max_gpu_percent`, `mean_memory_bytes`, `max_memory_bytes` and the number of `samples`.
            Empty without a GPU or without nvidia-ml-py; without the percents of a MIG instance.
        plan: String, the recompute plan as `Plan.to_json` writes it; empty without recompute.
        recompute_seconds: Float, seconds of `train_seconds` spent on recomputing, as the plan
            predicts them.
        learning_rate: Float, learning rate of the optimizer. `None` if the optimizer has a schedule
            of its own.
        final_learning_rate: Float, learning rate after the last update, which a callback or a
            schedule may have changed. Warm-up is left out, as in the recipe's learning rate.
        stopped_by: String, class name of the callback that stopped the training; empty if none did.
        skipped_updates: Integer, updates that loss scaling skipped because a gradient was not
            finite.
        input_examples_per_second: Float, speed of the input pipeline by itself. `None` if it was
            not timed.
        message: String, text of the error that ended the training; empty without an error.
        remarks: Tuple of strings, sentences for the user, such as that the training waited for its
            input.
        first_update_peak_bytes: Integer, peak device memory of the first update and the first
            validation on a GPU, above what was in use before the training; else `None`.
        noise_scale: Float, gradient noise scale in examples (McCandlish et al. 2018): the batch
            size above which a larger batch saves few updates. Measured where the recipe
            accumulates, smoothed over the last few hundred updates. `None` where it does not, or
            where the gradient cannot be told from its noise.
        curve_updates: Tuple of integers, weight updates before each measurement of `curve`. Empty
            in records of old versions.

    Example:
    >>> outcome = Outcome("horizon", curve=((1.0, 0.6), (2.0, 0.7)), train_seconds=2.0, examples=64)
    >>> outcome.examples_per_second
    32.0
    """

    ended: Name
    curve: tuple[tuple[Seconds, float], ...] = ()
    value: float | None = None
    metrics: Mapping[Name, float] = field(default_factory=dict)
    train_seconds: Seconds = 0.0
    median_update_seconds: Seconds | None = None
    updates: Count = 0
    examples: Count = 0
    seconds: Mapping[Name, float] = field(default_factory=dict)
    peak_bytes: Count | None = None
    utilisation: Mapping[Name, float] = field(default_factory=dict)
    plan: Text = ""
    recompute_seconds: float = 0.0
    learning_rate: float | None = None
    final_learning_rate: float | None = None
    stopped_by: Name = ""
    skipped_updates: Count = 0
    input_examples_per_second: float | None = None
    message: Text = ""
    remarks: tuple[Text, ...] = ()
    first_update_peak_bytes: Count | None = None
    noise_scale: float | None = None
    curve_updates: tuple[Count, ...] = ()

    @property
    def examples_per_second(self) -> float:
        """Float, examples per second of the training clock; 0 if no time was measured."""
        return self.examples / self.train_seconds if self.train_seconds else 0.0

    @property
    def failed(self) -> bool:
        """Boolean, whether it ended in an error, NaN or a crash, and scores 0."""
        return self.ended not in (*SCORED, STOPPED)

    @property
    def unexplained_seconds(self) -> float:
        """Float, the rest of `seconds["total"]` after all measured parts are subtracted."""
        return self.seconds.get("total", 0.0) - sum(
            s for part, s in self.seconds.items() if part != "total"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict that JSON can hold."""
        return asdict(self)

    def checked(self) -> Outcome:
        """Return this outcome, unless it holds numbers that no training measures.

        Raises:
            RecordError: If a value is finite and beyond all measure, or the curve goes back in
                time or is longer than any training's.
        """
        seconds = [each for each, _ in self.curve]
        if len(seconds) > LONGEST_CURVE or seconds != sorted(seconds):
            raise _no_outcome(f"a curve of {len(seconds):,} measurements that is no training's")
        values = [self.value, self.learning_rate, self.final_learning_rate, self.noise_scale]
        values += [self.recompute_seconds, self.input_examples_per_second]
        for numbers in (self.metrics, self.seconds, self.utilisation):
            values += numbers.values()
        values += [value for _, value in self.curve]
        wrong = [each for each in values if not _is_measurement(each)]
        if wrong:
            raise _no_outcome(f"the number {wrong[0]}")
        return self

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Outcome:
        """Read an outcome from the dict that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        return plain_text.read_json(cls, fields, _no_outcome).checked()


def _is_measurement(value: float | None) -> bool:
    """Whether a metric may have been measured: NaN and infinity may, where a training failed."""
    return value is None or not math.isfinite(value) or abs(value) <= HUGE


def _no_outcome(received: str) -> RecordError:
    return RecordError(
        "An outcome must have the fields that `Outcome.to_dict` writes",
        received,
        "Read it with the version of kbatch that wrote it",
    )


Direction = Literal["max", "min"]
Curve = Sequence[tuple[float, float]]

MARKS = 12  # chosen by hand, not tuned
# with a target, the next measurement is at most and at least so many times later; chosen by hand,
# not tuned
WIDEST_STEP, FINEST_STEP = 1.25, 1.02
# Consecutive measurements that must all hold a value, since one by itself is noise. Of 69 recipes
# trained with two seeds each, the best of 20 by one seed was judged by the other. Choosing by the
# best minimum of three lost 2.8 points of accuracy, by the best single measurement 4.9, by the best
# median of three 4.9 (20 s on one core, 64 px).
WINDOW = 3
FLOAT32 = 1e-6  # of a value: metrics are float32, whose rounding is a tenth of this


@dataclass(frozen=True)
class Held:
    """The best value that three consecutive measurements all reached.

    Attributes:
        value: Float, the worst of the three measurements.
        seconds: Float, training seconds at the last of the three, when the value was first held.
        index: Integer, position in the curve of the measurement with this value.
    """

    value: float
    seconds: float
    index: int


def marks(horizon: float) -> tuple[float, ...]:
    """Return the training seconds of the marks: `horizon * (k / 12) ** 2` for k = 1…12.

    The marks are dense at the start, so that a recipe can show that it is twenty times faster.

    >>> marks(144.0)[:3]
    (1.0, 4.0, 9.0)
    """
    return tuple(horizon * (k / MARKS) ** 2 for k in range(1, MARKS + 1))


def next_mark(
    curve: Curve, horizon: float, target: float | None = None, direction: str = "max"
) -> float:
    """Return the training seconds of the next measurement.

    Without a target these are the twelve marks. With a target, the next measurement is at most a
    quarter of the time so far later. It is earlier where the line through the last two measurements
    reaches the target, but at least 2 % later than the last. So times to the target are accurate to
    about 5 %.

    Returns a float; infinity once all marks have passed.

    Example:
    >>> next_mark([(1.0, 0.5)], horizon=144.0)
    4.0
    >>> next_mark([(16.0, 0.5), (20.0, 0.75)], horizon=144.0, target=0.875)
    22.0
    """
    last = curve[-1][0] if curve else 0.0
    mark = next((mark for mark in marks(horizon) if mark > last), math.inf)
    if target is None or not curve:
        return mark
    return min(
        mark,
        last * WIDEST_STEP,
        max(last * FINEST_STEP, _seconds_of_crossing(curve, target, direction)),
    )


def _seconds_of_crossing(curve: Curve, target: float, direction: str) -> float:
    """Return when the line through the last two measurements reaches the target."""
    seconds, value = curve[-1]
    missing = _sign(direction) * (target - value)
    if missing <= 0:
        return seconds
    if len(curve) < 2 or curve[-2][0] >= seconds:
        return math.inf
    slope = _sign(direction) * (value - curve[-2][1]) / (seconds - curve[-2][0])
    return seconds + missing / slope if slope > 0 else math.inf


def held_so_far(curve: Curve, direction: str = "max") -> list[Held | None]:
    """Return for each measurement the best value held so far; `None` before the third."""
    sign = _sign(direction)
    best: Held | None = None
    so_far: list[Held | None] = []
    for end in range(len(curve)):
        if end >= WINDOW - 1:
            index = _worst(curve, range(end - WINDOW + 1, end + 1), sign)
            value = curve[index][1]
            better = best is None or sign * value > sign * best.value
            if math.isfinite(value) and better:
                best = Held(value, curve[end][0], index)
        so_far.append(best)
    return so_far


def _worst(curve: Curve, window: Sequence[int], sign: int) -> int:
    """Return the index of the worst measurement in a window; NaN is worse than any number."""
    values = [sign * curve[index][1] for index in window]
    lowest = [value if math.isfinite(value) else -math.inf for value in values]
    return window[lowest.index(min(lowest))]


def held(curve: Curve, direction: str = "max") -> Held | None:
    """Return the best value held over the whole curve; `None` with fewer than three measurements.

    >>> held([(1, 0.5), (2, 0.9), (3, 0.6), (4, 0.7), (5, 0.8)])
    Held(value=0.6, seconds=4, index=2)
    """
    return held_so_far(curve, direction)[-1] if curve else None


def gain(curve: Curve, chance: float, direction: str = "max") -> float:
    """Return what the best three consecutive measurements are better than chance by, on average.

    Use it to compare two trainings of the same age. It tells more of the next training of a recipe
    than the value held, which is the worst of three. It is 0 for fewer than three measurements, for
    a value that is not finite, and for no value above chance.

    >>> round(gain([(1, 0.5), (2, 0.75), (3, 0.8), (4, 0.7)], chance=0.5), 3)
    0.25
    """
    sign, values = _sign(direction), [value for _, value in curve]
    if len(values) < WINDOW or not all(map(math.isfinite, values)):
        return 0.0
    windows = [values[end - WINDOW : end] for end in range(WINDOW, len(values) + 1)]
    best = max(sign * sum(window) / WINDOW for window in windows)
    return _gain(sign * best, chance, sign)


def seconds_to(curve: Curve, value: float, direction: str = "max") -> float | None:
    """Return the training seconds after which `value` was first held; `None` if it never was."""
    sign = _sign(direction)
    so_far = [best for best in held_so_far(curve, direction) if best is not None]
    return next((best.seconds for best in so_far if sign * best.value >= sign * value), None)


def score(
    curve: Curve, horizon: float, chance: float, target: float | None = None, direction: str = "max"
) -> float:
    """Compute the score of a curve: validation accuracy held above chance, per training second.

    Use it to score a curve again with another horizon or target, without training. Let `s` be the
    best value held by three consecutive measurements:

    * without a target, the score is `max(s(T) - chance, 0) / T`;
    * with a target `A`, it is `max(min(s(tau), A) - chance, 0) / tau`, where `tau` is the first
      time with `s >= A`, or `T` if there is none.

    Args:
        curve: Sequence of `(train_seconds, value)`, in the order of measurement.
        horizon: Float, `T`, the training seconds of every trial.
        chance: Float, the value of a model that has learned nothing, such as the share of the most
            frequent class.
        target: Float, a value that is good enough. Optional.
        direction: `"max"` for a value that should rise, `"min"` for a value that should fall.
            Defaults to `"max"`.

    Returns:
        A float of at least 0, in units of the value per second. It is 0 for fewer than three
        measurements ("too slow for this horizon"), for a value that is not finite, and for no value
        above chance.

    Raises:
        ValueError: If the horizon is not above 0, or the times do not rise.

    Example:
    >>> score([(1, 0.5), (2, 0.75), (3, 0.8), (4, 0.75)], horizon=5, chance=0.5)
    0.05
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise ValueError(
            f"`horizon` must be above 0 seconds. Received: {horizon}. "
            "Pass the training seconds of the trial."
        )
    seconds = [point[0] for point in curve]
    if any(later < earlier for earlier, later in itertools.pairwise(seconds)):
        raise ValueError(
            f"A curve's times must not fall. Received: {seconds}. "
            "Pass the points in the order they were measured."
        )
    if not all(math.isfinite(value) for _, value in curve):
        return 0.0
    final = held(curve, direction)
    if final is None:
        return 0.0
    sign = _sign(direction)
    reached = None if target is None else seconds_to(curve, target, direction)
    if reached is not None and target is not None:
        return _gain(target, chance, sign) / max(reached, 1e-9)
    best = final.value if target is None else sign * min(sign * final.value, sign * target)
    return _gain(best, chance, sign) / horizon


def _gain(value: float, chance: float, sign: int) -> float:
    """What a value is better than chance by; 0 for what a float32 cannot tell from chance."""
    gain = sign * (value - chance)
    return gain if gain > FLOAT32 * abs(chance) else 0.0


def standard_error(share: float, examples: int) -> float:
    """Return the standard error of a share of so many examples: `sqrt(p (1 - p) / n)`.

    >>> round(standard_error(0.75, 400), 4)
    0.0217
    """
    return math.sqrt(max(share * (1 - share), 0.0) / examples)


def _sign(direction: str) -> int:
    if direction not in ("max", "min"):
        raise ValueError(
            f'`direction` must be "max" or "min". Received: {direction!r}. '
            "Say whether the value should rise or fall."
        )
    return 1 if direction == "max" else -1


@dataclass(frozen=True)
class Goal:
    """The seconds that every trial gets, and the metric that it is judged by.

    Attributes:
        seconds: Float, the horizon: training seconds of each trial.
        metric: String, such as `"val_accuracy"`.
        direction: `"max"` or `"min"`.
        chance: Float, the metric of a model that learned nothing.
        target: Float, the value that is good enough; `None` for as good as possible.
        note: A sentence on how chance was inferred; empty if the user gave it or it is plain.
    """

    seconds: SecondsAbove0
    metric: Name
    direction: Direction
    chance: Number
    target: Number | None = None
    note: Text = ""

    def score(self, outcome: Outcome) -> float:
        """Return an outcome's score; 0 if the training failed.

        A training that the search stopped is scored as if it had held its value to the horizon.
        """
        if outcome.failed:
            return 0.0
        return score(outcome.curve, self.seconds, self.chance, self.target, self.direction)

    def gain(self, curve: Curve) -> float:
        """Return what a curve has gained above chance so far, without the target."""
        return gain(curve, self.chance, self.direction)

    def logs(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the finite numbers of a trial for KerasTuner, in which NaN and `None` break."""
        value = outcome.value
        if value is None or not math.isfinite(value):
            value = self.chance
        others = {name: float(each) for name, each in outcome.metrics.items()}
        return {
            **{name: each for name, each in others.items() if math.isfinite(each)},
            "score": float(score),
            self.metric: float(value),
            "train_seconds": float(outcome.train_seconds),
            "examples_per_second": float(outcome.examples_per_second),
            "oom": float(outcome.ended == OUT_OF_MEMORY),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the goal in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Goal:
        """Read the goal that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        return plain_text.read_json(cls, dict(fields), _no_goal)


def _no_goal(received: str) -> RecordError:
    return RecordError(
        "A project's goal must have seconds, metric, direction, chance and perhaps a target",
        received,
        "Move the folder away, or start in another one",
    )
