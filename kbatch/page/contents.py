"""The contents of the page, computed apart from their HTML."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.page.recipe_advice import RecipeAdvice, recipe_advice
from kbatch.page.recipe_table import RecipeTable, recipe_table
from kbatch.page.searched import Fact, commands, library_versions, searched
from kbatch.records import project
from kbatch.records.store import Record
from kbatch.results.chart_data import batch_infos, confirmed_infos, panels, sizes, space_info
from kbatch.results.charts.batches import cost_charts, score_charts
from kbatch.results.charts.canvas import Chart
from kbatch.results.charts.curves import curve_charts
from kbatch.results.charts.space import space_chart
from kbatch.results.loading import folder_of, load_own_optimizer, root_of
from kbatch.results.ranking import ranking
from kbatch.results.report import Report, remarks, report
from kbatch.results.sentences import headline, title

MOST_TRIALS = 300  # trials that the page shows, for its size: the best-scored
MOST_REMARKS = 100


@dataclass(frozen=True)
class Section:
    """A section of charts: its heading, and its charts."""

    heading: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Contents:
    """All that the page shows.

    Attributes:
        name: String, the folder's name.
        title: String, what may be claimed in a few words.
        headline: String, from the baseline to the best recipe in one sentence.
        sentences: Tuple of strings, what may be claimed, and which recipes had two speeds.
        searched: Tuple of names and words.
        table: `RecipeTable`.
        left_out: Integer, trials beyond `MOST_TRIALS`, which only trials.csv has.
        sections: Tuple of `Section`.
        advice: Tuple of `RecipeAdvice`.
        remarks: Tuple of strings.
        skipped: Tuple of strings, the files that could not be read.
        commands: Tuple of names and commands.
        versions: Tuple of strings.
        written_at: String, date and time.
    """

    name: str
    title: str
    headline: str
    sentences: tuple[str, ...]
    searched: tuple[Fact, ...]
    table: RecipeTable
    left_out: int
    sections: tuple[Section, ...]
    advice: tuple[RecipeAdvice, ...]
    remarks: tuple[str, ...]
    skipped: tuple[str, ...]
    commands: tuple[Fact, ...]
    versions: tuple[str, ...]
    written_at: str


def contents_of(source: Any) -> Contents:
    """Return the contents of the page of a search.

    Args:
        source: The tuner, or the folder of the search.

    Raises:
        RecordError: If there are no records, or they cannot be read.
    """
    found, root = report(source), root_of(source)
    shown = shown_records(found)
    ranks = ranking(shown, found.goal, found.validation_examples, found.dropped)
    facts = project.load_facts(folder_of(source)) or {}
    return Contents(
        root.resolve().name,
        title(found.records, found.claim, found.goal),
        headline(found.records, found.claim, found.goal),
        tuple(found.sentences),
        tuple(searched(facts, found.run, found.records, found.goal)),
        recipe_table(ranks, shown, found.goal, found.best),
        len(found.records) - len(shown),
        tuple(_sections(found, shown, load_own_optimizer(source))),
        tuple(recipe_advice(source, found.records, found.best)),
        tuple(remarks(shown)[:MOST_REMARKS]),
        tuple(found.run.get("skipped") or ()),
        tuple(commands(found.run, root)),
        tuple(library_versions(found.records)),
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
    )


def shown_records(found: Report) -> list[Record]:
    """Return the records that the page shows: all but the lowest-scored trials of a long search."""
    trials = [rank.record for rank in found.ranks if not rank.record.baseline]
    left_out = {id(record) for record in trials[MOST_TRIALS:]}
    return [record for record in found.records if id(record) not in left_out]


def _sections(found: Report, shown: Sequence[Record], own_optimizer: str) -> list[Section]:
    goal, examples = found.goal, found.validation_examples
    infos = batch_infos(shown, goal, examples, own_optimizer)
    means = confirmed_infos(shown, goal, own_optimizer)
    sections = [
        Section(
            f"{goal.metric} over training seconds",
            tuple(curve_charts(panels(shown, goal, found.best), goal, examples)),
        ),
    ]
    if len(sizes([*infos, *means])) > 1:  # one is no axis
        sections += [
            Section("Score over batch size", tuple(score_charts(infos, means, goal))),
            Section("Memory and throughput", tuple(cost_charts(infos, goal))),
        ]
    space = space_info(shown)
    if len(space.axes) > 1:
        sections.append(Section("The space", (space_chart(space),)))
    return [section for section in sections if section.charts]
