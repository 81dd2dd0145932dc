"""The page of a search: one HTML file that opens from the disk, without a network."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from kbatch import canvas, plain_text
from kbatch.canvas import Chart
from kbatch.memory import _cache
from kbatch.outcome import STOPPED, Goal
from kbatch.records import files, project
from kbatch.records.files import is_locked
from kbatch.records.store import Record
from kbatch.results._advice_evidence import Advice, ProjectFacts, facts_of
from kbatch.results._advice_rules import advice_on, unchecked
from kbatch.results.advice import evidence_of
from kbatch.results.chart_data import batch_infos, confirmed_infos, panels, sizes, space_info
from kbatch.results.charts import cost_charts, curve_charts, score_charts, space_chart
from kbatch.results.claim import Mean, confirmed
from kbatch.results.loading import folder_of, load_own_optimizer, root_of
from kbatch.results.ranking import Rank, ranking, table
from kbatch.results.report import Report, devices, remarks, report, versions
from kbatch.results.sentences import goal_words, headline, mean_text, title
from kbatch.results.words import SCORE, counted, score_text, spent_words

MOST_TRIALS = 300  # trials that the page shows, for its size: the best-scored
MOST_REMARKS = 100


@dataclass(frozen=True)
class Section:
    """A section of charts: its heading, and its charts."""

    heading: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Contents:
    """All that the page shows."""

    name: str  # the folder's name
    title: str  # what may be claimed in a few words
    headline: str  # from the baseline to the best recipe in one sentence
    sentences: tuple[str, ...]  # what may be claimed, and which recipes had two speeds
    searched: tuple[Fact, ...]
    table: RecipeTable
    left_out: int  # trials beyond `MOST_TRIALS`, which only trials.csv has
    sections: tuple[Section, ...]
    advice: tuple[RecipeAdvice, ...]
    remarks: tuple[str, ...]
    skipped: tuple[str, ...]  # the files that could not be read
    commands: tuple[Fact, ...]
    versions: tuple[str, ...]
    written_at: str  # date and time


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
        tuple(versions(found.records).split("; ")),
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
    return resources.files("kbatch.results").joinpath("templates", name).read_text(encoding="utf-8")


FILE = "report.html"
RUNNING = (
    "The search was still running when this page was written. `kbatch report` writes it again."
)
LIVE = "The search is running: this page is written between trainings, and loads itself again."
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


# The page may be made on another machine than the search: without a name, no rule asks this one.
UNKNOWN_DEVICE = "unknown"


@dataclass(frozen=True)
class RecipeAdvice:
    """What a colleague would say of one recipe."""

    name: str  # such as `"best recipe (trial 3)"`
    recipe: str  # in words
    found: tuple[Advice, ...]
    unchecked: tuple[str, ...]


def recipe_advice(
    source: Any, records: Sequence[Record], best: Record | None
) -> list[RecipeAdvice]:
    """Return the advice on the best recipe of a search, and on its baseline."""
    baseline = next((record for record in records if record.baseline), None)
    named = []
    if best is not None:
        named.append((f"Best recipe (trial {best.trial})", best))
    if baseline is not None and (best is None or best.recipe != baseline.recipe):
        named.append(("Baseline", baseline))
    facts = _of_its_own_machine(facts_of(source))
    return [_of(name, record, facts) for name, record in named]


def _of(name: str, record: Record, facts: ProjectFacts) -> RecipeAdvice:
    evidence = evidence_of(record.recipe, results=facts)
    found, left = advice_on(evidence), unchecked(evidence)
    return RecipeAdvice(name, str(record.recipe), tuple(found), tuple(left))


def _of_its_own_machine(facts: ProjectFacts) -> ProjectFacts:
    trainings = tuple(
        dataclasses.replace(each, device=each.device or UNKNOWN_DEVICE)
        for each in facts.results.trainings
    )
    results = dataclasses.replace(facts.results, trainings=trainings)
    return dataclasses.replace(facts, results=results)


CONFIRMED = "score/s, fresh seeds"
REMARK = "remark"
TEXT = ("recipe", "own hyperparameters", "ended", REMARK)  # columns sorted as words
BASELINE, BEST = "baseline", "best"
Key = float | str


@dataclass(frozen=True)
class PageCell:
    """One cell: its text, and the number or word that it is sorted by (`None` comes last)."""

    text: str
    key: Key | None


@dataclass(frozen=True)
class PageRow:
    """One recipe: its cells, and `"baseline"`, `"best"` or an empty string."""

    role: str
    cells: tuple[PageCell, ...]


@dataclass(frozen=True)
class RecipeTable:
    """The table of recipes."""

    headings: tuple[str, ...]
    rows: tuple[PageRow, ...]  # the baseline first, then by score

    def is_text(self, heading: str) -> bool:
        """Tell whether a column is sorted as words."""
        return heading in TEXT


def recipe_table(
    ranks: Sequence[Rank], records: Sequence[Record], goal: Goal, best: Record | None
) -> RecipeTable:
    """Return the ranking as a table, with the scores of the confirmation if there is one."""
    texts = table(ranks, goal.metric)
    names = [name or REMARK for name in texts.headings]
    means = {
        (group[0].trial, str(group[0].recipe)): Mean.of([record.score for record in group])
        for group in confirmed(records).values()
    }
    rows = [
        _row(rank, dict(zip(names, map(str, row), strict=True)), goal, means, best)
        for rank, row in zip(ranks, texts.rows, strict=True)
    ]
    if means:
        names.insert(names.index(SCORE) + 1, CONFIRMED)
    return RecipeTable(tuple(names), tuple(rows))


def _row(
    rank: Rank,
    texts: Mapping[str, str],
    goal: Goal,
    means: Mapping[tuple[int, str], Mean],
    best: Record | None,
) -> PageRow:
    record, outcome = rank.record, rank.record.outcome
    numbers: dict[str, float | None] = {
        "trial": float(record.trial),
        SCORE: record.score,
        goal.metric: outcome.value,
        "examples/s": outcome.examples_per_second,
        "peak MB": outcome.peak_bytes,
    }
    cells = []
    for name, text in texts.items():
        key: Key | None = text if name in TEXT else _finite(numbers.get(name))
        cells.append(PageCell(text, key))
        if name == SCORE and means:
            cells.append(_confirmed_cell(means.get((record.trial, str(record.recipe)))))
    role = BASELINE if record.baseline else BEST * (record is best)
    return PageRow(role, tuple(cells))


def _confirmed_cell(mean: Mean | None) -> PageCell:
    if mean is None:
        return PageCell("-", None)
    text = mean_text(mean, score_text)
    return PageCell(f"{text} (n = {len(mean.values)})", _finite(mean.mean))


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(number)


Fact = tuple[str, str]


def searched(
    facts: Mapping[str, Any], run: Mapping[str, Any], records: Sequence[Record], goal: Goal
) -> list[Fact]:
    """Return what was searched, as names and words."""
    told = [(name, str(run[name])) for name in ("data", "model") if name in run]
    return [
        *told,
        ("goal", goal_words(goal)),
        ("examples", _examples(facts)),
        *_space(facts.get("space")),
        ("trainings", _trainings(records)),
        ("device", devices(records)),
    ]


def commands(run: Mapping[str, Any], root: Path) -> list[Fact]:
    """Return the commands that made the results and that go on from them."""
    own = [("made by", str(run["command"]))] if "command" in run else []
    folder = shlex.quote(str(root))
    return [
        *own,
        ("written by", f"kbatch report {folder}"),
        ("advice", f"kbatch advise {folder}"),
        ("in Python", f"kbatch.best_recipe({str(root)!r})"),
    ]


def _examples(facts: Mapping[str, Any]) -> str:
    data = facts.get("data") or {}
    counts = [(name, (data.get(name) or {}).get("examples")) for name in ("training", "validation")]
    known = [f"{count:,} for {name}" for name, count in counts if isinstance(count, int)]
    return ", ".join(known) or "unknown"


def _space(space: Any) -> Iterator[Fact]:
    """The axes that had a choice."""
    if not plain_text.fits_json(space, dict[str, Any]):
        return
    for name, values in space.items():
        words = _choice(values)
        if words:
            yield name.replace("_", " "), words
        elif name == "learning_rate" and isinstance(values, dict):
            for optimizer, rates in values.items():
                yield f"learning rate of {optimizer}, at 32", _choice(rates, " … ") or str(rates)


def _choice(values: Any, between: str = ", ") -> str:
    """Several values in words; empty if there is no choice."""
    if not isinstance(values, list) or len(values) < 2:
        return ""
    return between.join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)


def _trainings(records: Sequence[Record]) -> str:
    """How many trainings there were, how they ended, and how long they took."""
    purposes = Counter(record.purpose for record in records)
    recipes = len(confirmed(records))
    trials = purposes["search"]
    words = [counted(trials, "trial")]
    words.append(f"{purposes['baseline']} of the baseline")
    if recipes:
        words.append(f"{purposes['confirmation']} to confirm {recipes} recipes")
    failed = sum(record.outcome.failed for record in records)
    stopped = sum(record.outcome.ended == STOPPED for record in records)
    if stopped:
        words.append(f"{stopped} stopped at a rung")
    if failed:
        words.append(f"{failed} failed")
    return f"{', '.join(words)}; {spent_words(records)} in all"
