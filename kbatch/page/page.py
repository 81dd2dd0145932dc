"""Page: a search as one file of HTML, written again while it runs."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from kbatch.memory import _cache
from kbatch.page.tables import (
    Fact,
    RecipeAdvice,
    RecipeTable,
    commands,
    library_versions,
    recipe_advice,
    recipe_table,
    searched,
)
from kbatch.recipe import Recipe
from kbatch.records import files, project
from kbatch.records.files import is_locked
from kbatch.records.store import Record
from kbatch.results.chart_data import batch_infos, confirmed_infos, panels, sizes, space_info
from kbatch.results.charts import canvas
from kbatch.results.charts.batches import cost_charts, score_charts
from kbatch.results.charts.canvas import Chart
from kbatch.results.charts.curves import curve_charts
from kbatch.results.charts.space import space_chart
from kbatch.results.loading import folder_of, load_own_optimizer, root_of
from kbatch.results.ranking import ranking
from kbatch.results.report import Report, remarks, report
from kbatch.results.sentences import headline, title
from kbatch.training.progress import Forecast, Watcher

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
    """Return the contents of the page of a search."""
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


TEMPLATE, STYLE, SCRIPT = "page.html.jinja", "page.css", "page.js"


def html_of(contents: Contents, library: str, state: str = "", reload_seconds: int = 0) -> str:
    """Return the page of a search."""
    return rendered(_text(TEMPLATE), contents, library, state, reload_seconds)


def rendered(
    template: str, page: Any, library: str, state: str = "", reload_seconds: int = 0
) -> str:
    """Return a page in one file: its texts escaped, its style, its charts and their library."""
    return (
        _environment()
        .from_string(template)
        .render(
            page=page,
            library=library,
            style=_text(STYLE),
            script=_text(SCRIPT),
            state=state,
            reload_seconds=reload_seconds,
        )
    )


@functools.cache
def vega() -> str:
    """Return the library of the charts, which takes seconds to bundle and is kept in the cache."""
    bundler = importlib.metadata.version("vl-convert-python")
    name = f"vega-{canvas.version()}-{bundler}"
    known = _cache.load(name)
    if isinstance(known, str) and "vegaEmbed" in known:
        return known
    made = canvas.script()
    _cache.save(name, made)
    return made


@functools.cache
def _environment() -> jinja2.Environment:
    # Names of hyperparameters, folders and data are the user's: all texts are escaped.
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _text(name: str) -> str:
    return resources.files("kbatch.page").joinpath(name).read_text(encoding="utf-8")


FILE = "report.html"
RUNNING = (
    "The search was still running when this page was written. `kbatch report` writes it again."
)
LIVE = "The search is running: this page is written after each training, and loads itself again."
RELOAD_SECONDS = 10


def write(source: Any) -> Path:
    """Write the page of a search into its folder, as `report.html`."""
    return _written(source, RUNNING if is_locked(folder_of(source)) else "", 0)


def write_live(source: Any) -> Path:
    """Write the page of a search that goes on in this process; the page reloads itself."""
    return _written(source, LIVE, RELOAD_SECONDS)


def _written(source: Any, state: str, reload_seconds: int) -> Path:
    file = root_of(source) / FILE
    files.write(file, html_of(contents_of(source), vega(), state, reload_seconds))
    return file


class LivePage(Watcher):
    """Tells another watcher of every training, and writes the page of the search after each one.

    The page is written between two trainings, so no clock counts it. If it cannot be written, a
    warning says so once, and the search goes on.

    Example:
    ```python
    from kbatch.page.page import LivePage
    from kbatch.training.progress import ProgressBar

    hypermodel.watcher = LivePage("runs/pets", ProgressBar())
    ```
    """

    def __init__(self, directory: Any, watcher: Watcher) -> None:
        self._directory = directory
        self._watcher = watcher
        self._warned = False

    def begins(self, forecast: Forecast, parts: str) -> None:
        """Tell that a search or a confirmation begins."""
        self._watcher.begins(forecast, parts)

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Tell that a training begins."""
        self._watcher.started(purpose, trial, recipe, seconds)

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Tell that time has passed."""
        self._watcher.progress(train_seconds, value)

    def answered(self, record: Record) -> None:
        """Tell that a record answered a training."""
        self._watcher.answered(record)

    def ended(self, record: Record) -> None:
        """Tell that a training ended, and write the page."""
        self._watcher.ended(record)
        try:
            write_live(self._directory)
        except Exception as error:  # whatever it is, the record of the training is safe
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        words = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(
            f"The page {FILE} could not be written, and the search goes on: {words}",
            stacklevel=3,
        )


@contextmanager
def at_rest(directory: str | Path) -> Iterator[None]:
    """Write the page again where a search stopped early, so that it does not wait for more."""
    try:
        yield
    except BaseException:
        if (Path(directory) / FILE).exists():
            with contextlib.suppress(Exception):
                write(directory)
        raise
