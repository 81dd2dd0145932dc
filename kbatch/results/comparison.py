"""Comparison: two searches beside each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kbatch import outcome
from kbatch.errors import in_one_frame
from kbatch.outcome import Goal
from kbatch.records import project
from kbatch.records.store import Record
from kbatch.results.claim import confirmed
from kbatch.results.interval import FEWEST_SEEDS, interval, measuring_error
from kbatch.results.loading import (
    folder_of,
    load_goal,
    load_race,
    load_records,
    load_validation_examples,
    root_of,
)
from kbatch.results.ranking import best_of, trainings_of
from kbatch.results.words import score_text, versions_of
from kbatch.text_table import TextTable

BASELINE, BEST = "baseline", "best"


@dataclass(frozen=True)
class RecipeTrainings:
    """The trainings of one recipe: those of the confirmation, or else that of the search."""

    records: tuple[Record, ...]  # each with a seed of its own
    fresh: bool  # whether they are those of a confirmation

    @property
    def scores(self) -> list[float]:
        """The score of each training."""
        return [record.score for record in self.records]

    @property
    def value(self) -> float | None:
        """The mean of the values held; `None` if none held any."""
        values = [record.outcome.value for record in self.records]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return statistics.fmean(known) if known else None

    def seconds_to(self, aim: float | None, goal: Goal) -> float | None:
        """Return the mean training seconds until a value was held; `None` if one missed it."""
        if aim is None:
            return None
        curves = [record.outcome.curve for record in self.records]
        times = [outcome.seconds_to(curve, aim, goal.direction) for curve in curves]
        known = [time for time in times if time is not None]
        return statistics.fmean(known) if len(known) == len(times) else None


@dataclass(frozen=True)
class SearchedSide:
    """A search, as a comparison looks at it."""

    name: str  # its folder
    goal: Goal
    facts: Mapping[str, Any]  # that it was started with
    examples: int  # how many validation examples its metric was measured on
    trained: Mapping[str, RecipeTrainings]  # of baseline and best recipe, as far as trained
    recipes: int  # how many recipes were confirmed besides the baseline

    @property
    def aim(self) -> float | None:
        """The target, or without one the value that the baseline held."""
        if self.goal.target is not None:
            return self.goal.target
        own = self.trained.get(BASELINE)
        return None if own is None else own.value

    def measuring_error(self, what: str) -> float:
        """Return the standard error of measuring one score, of the `"baseline"` or `"best"`."""
        return measuring_error(self.trained[what].records, self.goal, self.examples)


def side_of(source: Any) -> SearchedSide:
    """Read a search as one side of a comparison."""
    records = load_records(source)
    groups = [tuple(group) for group in confirmed(records).values()]
    trained: dict[str, RecipeTrainings] = {}
    own = next((group for group in groups if group[0].baseline), ())
    once = tuple(record for record in records if record.purpose == BASELINE)
    if own or once:
        trained[BASELINE] = RecipeTrainings(own or once, bool(own))
    best = best_of(records, load_race(source).dropped)
    if best is not None:
        fresh = _confirmed_of(groups, best)
        trained[BEST] = RecipeTrainings(fresh or tuple(trainings_of(records, best)), bool(fresh))
    return SearchedSide(
        str(root_of(source)),
        load_goal(source),
        project.load_facts(folder_of(source)) or {},
        load_validation_examples(source),
        trained,
        sum(not group[0].baseline for group in groups),
    )


def _confirmed_of(groups: Sequence[tuple[Record, ...]], best: Record) -> tuple[Record, ...]:
    """The trainings with fresh seeds of a trial's recipe."""
    wanted = best.trial, best.recipe
    return next((group for group in groups if (group[0].trial, group[0].recipe) == wanted), ())


SIDES = ("a", "b")
DATA = ("data.", "validation_data.")  # beginnings of the names of their facts
LONGEST = 60  # characters of a fact that a sentence names
LEFT = ("search", "training", "recipe")
UNSEEN = ["peak_bytes", "device", "versions"]  # columns too wide to print, or told in sentences
MISSING = {
    BASELINE: "has not trained its baseline yet",
    BEST: "has no trial yet that ended well",
}


@dataclass(frozen=True)
class Comparison:
    """Two searches, side by side. `print` shows sentences and a table, a notebook shows HTML.

    Attributes:
        table: `pandas.DataFrame` with a row for the baseline and for the best recipe of each
            search: `search` (`"a"` or `"b"`), `training`, `trial`, `recipe`, `seeds` (fresh ones;
            0 without a confirmation), `score` (per second), `metric`, `value`,
            `seconds_to_baseline` (to the target if there is one, else to the value that the
            search's own baseline held), `examples_per_second`, `peak_bytes`, `device`, `versions`.
        differences: Tuple of strings, what the searches did not have in common.
        comparable: Boolean, whether their goals and their data are equal; scores of other goals or
            data cannot be compared.
        sentences: Tuple of strings, what may be said, the differences among them.
    """

    table: pd.DataFrame
    differences: tuple[str, ...]
    comparable: bool
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"• {sentence}" for sentence in self.sentences]
        return self._shown().text(said)

    def _repr_html_(self) -> str:
        return self._shown().html(self.sentences)

    def _shown(self) -> TextTable:
        table = self.table.drop(columns=UNSEEN)
        rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
        return TextTable(list(table.columns), rows, LEFT)


@in_one_frame
def compare(directory_a: Any, directory_b: Any) -> Comparison:
    """Compare two searches: of one model on two machines, or before and after a change.

    Use it to see what differs between them, and whether the difference of their scores is more than
    noise. Differences are claimed of confirmed recipes only, with a 95 % interval.

    Args:
        directory_a: The tuner of a search, or its folder.
        directory_b: The tuner or the folder of the other search.

    Returns:
        A `Comparison`; print it.

    Raises:
        RecordError: If a folder holds no records, or they cannot be read.

    Example:
    ```python
    print(kbatch.results.compare("runs/laptop", "runs/server"))
    ```
    """
    a, b = side_of(directory_a), side_of(directory_b)
    differences = tuple(_differences(a, b))
    refusal = _refusal(a, b)
    said = [f"a: {a.name}, b: {b.name}", *_openings(a, b), *differences]
    if refusal:
        said.append(refusal)
    else:
        said += [_difference(a, b, what) for what in (BASELINE, BEST)]
    rows = [row for name, side in zip(SIDES, (a, b), strict=True) for row in _rows(name, side)]
    return Comparison(pd.DataFrame(rows, columns=_COLUMNS), differences, not refusal, tuple(said))


def _refusal(a: SearchedSide, b: SearchedSide) -> str:
    """Why the scores cannot be compared; empty if they can."""
    if list(_goals_apart(a, b)):
        return (
            "Their goals differ, and a score belongs to its goal: the scores cannot be compared. "
            "Search both with one seconds_per_trial, metric and target to compare them."
        )
    if _data_differ(a, b):
        return (
            "Their data differ: a difference of scores would be the data's as well as the "
            "recipes', so none is claimed. Search both on the same data to compare them."
        )
    return ""


def _data_differ(a: SearchedSide, b: SearchedSide) -> bool:
    """Whether facts of the data differ; data without a checksum are taken for the same."""
    ours, theirs = _flat("", a.facts), _flat("", b.facts)
    names = [name for name in ours.keys() & theirs.keys() if name.startswith(DATA)]
    pairs = [(ours[name], theirs[name]) for name in names]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _openings(a: SearchedSide, b: SearchedSide) -> Iterator[str]:
    for name, side in zip(SIDES, (a, b), strict=True):
        yield from (
            f"{name} {words}" for what, words in MISSING.items() if what not in side.trained
        )


_COLUMNS = ["search", "training", "trial", "recipe", "seeds", "score", "metric", "value"]
_COLUMNS += ["seconds_to_baseline", "examples_per_second", "peak_bytes", "device", "versions"]


def _rows(name: str, side: SearchedSide) -> Iterator[list[Any]]:
    for what, trained in side.trained.items():
        last = trained.records[-1]
        peaks = [each.outcome.peak_bytes for each in trained.records if each.outcome.peak_bytes]
        speeds = [record.outcome.examples_per_second for record in trained.records]
        yield [
            name,
            what,
            last.trial,
            str(last.recipe),
            len(trained.records) if trained.fresh else 0,
            statistics.fmean(trained.scores),
            side.goal.metric,
            trained.value,
            trained.seconds_to(side.aim, side.goal),
            statistics.fmean(speeds),
            max(peaks, default=None),
            last.device,
            versions_of(last),
        ]


def _difference(a: SearchedSide, b: SearchedSide, what: str) -> str:
    """What may be said of the scores of both baselines, or of both best recipes."""
    words = {BASELINE: "The baselines", BEST: "The best recipes"}[what]
    if what not in a.trained or what not in b.trained:
        return f"{words}: not trained on both sides, so nothing is compared."
    first, second = a.trained[what], b.trained[what]
    scores = f"{_mean(first)} per second in a, {_mean(second)} in b"
    if not (first.fresh and second.fresh):
        return f"{words}: {scores}; not confirmed on both sides, so no difference is claimed."
    fewest = min(len(first.records), len(second.records))
    if fewest < FEWEST_SEEDS:
        return (
            f"{words}: {scores}; {fewest} fresh seeds are too few to claim a difference, "
            f"which takes {FEWEST_SEEDS} on both sides."
        )
    # each side's best was chosen among its recipes by the same runs
    pairs = a.recipes * b.recipes if what == BEST else 1
    errors = a.measuring_error(what), b.measuring_error(what)
    half = float(interval(first.scores, second.scores, *errors, pairs))
    middle = statistics.fmean(second.scores) - statistics.fmean(first.scores)
    return f"{words}: {scores}; {_interval(middle, half)}"


def _interval(middle: float, half: float) -> str:
    digits_of = max(abs(middle), half)
    low, high = (score_text(each, digits_of) for each in (middle - half, middle + half))
    words = f"b less a is {score_text(middle, digits_of)} (95 % interval {low} to {high})"
    if abs(middle) <= half:
        return f"{words}, which is within noise."
    return f"{words}: {'b' if middle > 0 else 'a'} is better."


def _mean(trained: RecipeTrainings) -> str:
    return score_text(statistics.fmean(trained.scores))


def _goals_apart(a: SearchedSide, b: SearchedSide) -> Iterator[str]:
    """The parts of the goals that differ; a chance that was inferred may differ by rounding."""
    for name in ("seconds", "metric", "direction", "chance", "target"):
        ours, theirs = getattr(a.goal, name), getattr(b.goal, name)
        numbers = isinstance(ours, float) and isinstance(theirs, float)
        if ours != theirs and not (numbers and math.isclose(ours, theirs, rel_tol=1e-6)):
            yield f"{name} of the goal: {_short(ours)} in a, {_short(theirs)} in b"


def _differences(a: SearchedSide, b: SearchedSide) -> Iterator[str]:
    """Sentences on what the searches were started with, and what they ran on."""
    yield from _goals_apart(a, b)
    ours, theirs = _flat("", a.facts), _flat("", b.facts)
    # the goal is told above, and its parts stand in other facts too
    told = ("goal.", "metric", "direction", "chance", "target", "measured_horizon_seconds")
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name) and not name.startswith(told):
            yield f"{_told(name)}: {_short(ours.get(name))} in a, {_short(theirs.get(name))} in b"
    first, second = _last_versions(a), _last_versions(b)
    for name in sorted(first.keys() & second.keys()):
        if first[name] != second[name]:
            yield f"version of {name}: {first[name]} in a, {second[name]} in b"


def _told(name: str) -> str:
    """The dotted name of a fact in words, such as `checksum of the training data`."""
    *places, last = name.replace("_", " ").split(".")
    if not places:
        return last
    if places[0] == "data" and len(places) > 1:
        places = [" ".join((*places[1:], "data"))]
    return f"{last} of the {' '.join(places)}"


def _flat(before: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts by their dotted names; a table of batch sizes is left out."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping) and name != "table":
            flat.update(_flat(f"{before}{name}.", value))
        elif name != "table":
            flat[f"{before}{name}"] = value
    return flat


def _last_versions(side: SearchedSide) -> dict[str, str]:
    records = [record for trained in side.trained.values() for record in trained.records]
    return dict(records[-1].versions) if records else {}


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
