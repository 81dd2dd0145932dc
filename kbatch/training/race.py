"""The race of a confirmation: fresh seeds go to the leaders, until the best is told apart."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import tensorflow as tf

from kbatch.errors import SearchError
from kbatch.recipe_fields import whole_number
from kbatch.records.store import Record
from kbatch.results.claim import Race, claim_of
from kbatch.results.confirmed_recipes import confirmed_best
from kbatch.results.duration import Ahead, race_trainings
from kbatch.results.loading import load_validation_examples
from kbatch.results.own_values import apart
from kbatch.results.score_interval import FEWEST_SEEDS
from kbatch.training import crew
from kbatch.training.forecast import Forecast
from kbatch.training.search import Search

DECIDED = ("better", "worse")  # verdicts of a claim after which no seed is needed


def looks_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of seeds after which the recipes are compared.

    Args:
        seeds: Integer, or a rising sequence of integers.

    Raises:
        SearchError: If it is neither.

    >>> looks_of(3), looks_of([3, 5, 8])
    ((3,), (3, 5, 8))
    """
    given = tuple(seeds) if isinstance(seeds, (list, tuple, range)) else (seeds,)
    looks = tuple(whole_number(look) or 0 for look in given)
    if not looks or looks[0] < 1 or list(looks) != sorted(set(looks)):
        raise SearchError(
            "`seeds` must be a whole number of at least 1, or rising ones",
            seeds,
            "Pass 3 or (3, 5, 8, 12), say",
        )
    return looks


def run(
    search: Search,
    candidates: Sequence[Record],
    looks: Sequence[int],
    ends_at: float,
    test: tf.data.Dataset | None,
) -> list[Record]:
    """Train the baseline and the candidates with fresh seeds, and return the records.

    Where a gain may be claimed, and the best recipe and the baseline have other hyperparameters of
    the user's own, that recipe is trained with the baseline's too. These trainings are kept, and
    not returned.

    Args:
        search: The search.
        candidates: Records of the recipes' first trainings.
        looks: Rising integers, the numbers of seeds after which the recipes are compared.
        ends_at: Float, time on `time.monotonic` after which no training is begun.
        test: Batches that the kept weights are evaluated on too. Optional.
    """
    made = _raced(search, candidates, looks, ends_at, test)
    _part(search, candidates, ends_at, test)
    return made


def _raced(
    search: Search,
    candidates: Sequence[Record],
    looks: Sequence[int],
    ends_at: float,
    test: tf.data.Dataset | None,
) -> list[Record]:
    """Train the baseline and the candidates with fresh seeds, as far as the race goes."""
    left, made = list(candidates), list[Record]()
    first = search.model_maker.seed + 1
    _forecast(search, looks, len(left), ends_at)
    _note(search, looks, returned=left)
    try:
        for begun, look in zip((0, *looks), looks, strict=False):
            racers = [search.baseline(), *left]
            # Seed by seed: if the machine's speed changes, it changes for all recipes alike.
            seeds = range(first + begun, first + look)
            asked = [
                functools.partial(search.again, record, seed, test)
                for seed in seeds
                for record in racers
            ]
            if not _train(search, asked, ends_at, made) or _is_decided(search, left):
                return made
            racing, left = left, better_half(left, made)
            if look != looks[-1]:
                _note(search, looks, dropped=[each for each in racing if each not in left])
    finally:
        # Whoever stops a race, by a budget or Ctrl-C, looks at it there.
        _note(search, {sum(again.baseline for again in made)} - {0})
    return made


def _forecast(search: Search, looks: Sequence[int], candidates: int, ends_at: float) -> None:
    """Tell the watcher how long the race takes, if it goes on to the last look."""
    records, workers = search.project.store.records(), getattr(search.trainer, "workers", 1)
    made = sum(record.purpose == "confirmation" for record in records)
    trainings = max(sum(race_trainings(looks, candidates)) - made, 0)
    ahead = Ahead(search.goal.seconds, whole=trainings, workers=workers)
    race = "at most " if len(looks) > 1 else ""
    words = f"{race}{trainings} trainings of {search.goal.seconds:.3g} training seconds to confirm"
    search.watcher.begins(Forecast(ahead, records, ends_at - time.monotonic()), words)


def _part(
    search: Search, candidates: Sequence[Record], ends_at: float, test: tf.data.Dataset | None
) -> None:
    """Train the best recipe with the baseline's own hyperparameters, where both changed."""
    race, records = Race.of(search.project.facts()), search.project.store.records()
    best = confirmed_best(records, race.dropped)
    first = next((each for each in candidates if best and each.trial == best[0].trial), None)
    seeds = sorted({record.seed for record in best})
    if first is None or len(seeds) < FEWEST_SEEDS:  # there is no gain to part
        return
    baseline = next(each for each in records if each.baseline)
    if first.recipe == baseline.recipe or apart(first, baseline) == ({}, {}):
        return
    asked = [functools.partial(search.parted, first, baseline, seed, test) for seed in seeds]
    _train(search, asked, ends_at, [])


def _train(
    search: Search,
    asked: Sequence[Callable[[], Record]],
    ends_at: float,
    made: list[Record],
) -> bool:
    """Make trainings in all workers, add the records, and tell whether time sufficed."""
    ended: dict[int, Record] = {}
    places = iter(range(len(asked)))

    def work(worker: int) -> None:
        while time.monotonic() <= ends_at:
            place = next(places, None)
            if place is None:
                return
            ended[place] = asked[place]()

    try:
        with crew.beside(search.trainer, work):
            work(0)
    finally:
        made += [ended[place] for place in sorted(ended)]
    return len(ended) == len(asked)


def _note(
    search: Search,
    looks: Iterable[int],
    returned: Sequence[Record] = (),
    dropped: Sequence[Record] = (),
) -> None:
    """Keep where recipes can be compared, and which of them race."""
    race = Race.of(search.project.facts())
    out = {*race.dropped, *(each.trial for each in dropped)} - {each.trial for each in returned}
    search.project.note({"looks": sorted({*race.looks, *looks}), "dropped": sorted(out)})


def better_half(candidates: Sequence[Record], made: Sequence[Record]) -> list[Record]:
    """Return the candidates with the higher mean scores, rounded up, in their order.

    Of equal ones the first go on.

    Args:
        candidates: Records of the recipes' first trainings.
        made: Records of their trainings with fresh seeds, and of others.
    """
    means = [
        statistics.fmean(
            again.score
            for again in made
            if (again.trial, again.recipe) == (candidate.trial, candidate.recipe)
        )
        for candidate in candidates
    ]
    places = sorted(range(len(means)), key=lambda place: -means[place])
    kept = sorted(places[: math.ceil(len(means) / 2)])
    return [candidates[place] for place in kept]


def _is_decided(search: Search, left: Sequence[Record]) -> bool:
    """Whether the best of the recipes that race is told from the baseline."""
    records, folder = search.project.store.records(), search.project.directory
    racing = {each.trial for each in left}
    others = {record.trial for record in records if not record.baseline} - racing
    race = replace(Race.of(search.project.facts()), dropped=tuple(others))
    claim = claim_of(records, search.goal, load_validation_examples(folder), race)
    return claim is not None and claim.verdict in DECIDED
