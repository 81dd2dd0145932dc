"""Report: the table, the claim and the figures of a search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbatch import plain_text, text_table
from kbatch.errors import RecordError, in_one_frame
from kbatch.outcome import Goal
from kbatch.plain_text import markdown, without_controls
from kbatch.records import files as records_files
from kbatch.records.project import OWN
from kbatch.records.store import FRESH, Record
from kbatch.results.chart_data import MOST_POINTS, batch_infos, panels, sample
from kbatch.results.claim import Claim, claim_of
from kbatch.results.loading import (
    load,
    load_checks,
    load_confirmations,
    load_goal,
    load_own_optimizer,
    load_race,
    load_records,
    load_tuner,
    load_validation_examples,
    root_of,
    uneven_speeds,
)
from kbatch.results.prospects import Prospects, prospects_of
from kbatch.results.ranking import Rank, best_of, ranking, table
from kbatch.results.sentences import claim_sentences, confirmed_table, goal_words, learned
from kbatch.results.words import spent_words, versions_of
from kbatch.runtime import users_code
from kbatch.text_table import csv_of

CURVES, BATCHES = "accuracy_over_seconds.png", "batch_size.png"
RANKING_TITLE = "Recipes by score"
MESSAGE_LENGTH = 200  # characters of an error that the page shows


def markdown_page(
    records: Sequence[Record],
    goal: Goal,
    ranks: Sequence[Rank],
    claim: Claim | None,
    run: dict[str, Any],
) -> str:
    """Return the report as a page of Markdown."""
    lines = [
        "# What a search with kbatch found",
        "",
        *_run_lines(records, goal, run),
        *_claim_lines(records, claim, goal),
        f"## {RANKING_TITLE}",
        "",
        table(ranks, goal.metric).markdown(),
        "",
        f"![{markdown(goal.metric)} over training seconds]({CURVES})",
        "",
        f"![against batch size]({BATCHES})",
        "",
        *_section("Remarks", remarks(records)),
        *_skipped_lines(run),
    ]
    return "\n".join(lines)


def _run_lines(records: Sequence[Record], goal: Goal, run: dict[str, Any]) -> list[str]:
    told = [
        f"- {name}: {markdown(str(run[name]))}"
        for name in ("command", "data", "model")
        if name in run
    ]
    return [
        *told,
        f"- goal: {markdown(goal_words(goal))}",
        f"- time: {spent_words(records)} in all",
        f"- device: {markdown(devices(records))}",
        f"- versions: {markdown(versions(records))}",
        "",
    ]


def _claim_lines(records: Sequence[Record], claim: Claim | None, goal: Goal) -> list[str]:
    sentences = [*claim_sentences(claim, goal), *uneven_speeds(records)]
    lines = _section("Baseline against best", sentences)
    if claim is None:
        return lines
    return [
        *lines,
        "Confirmed with fresh seeds (mean ± standard error over seeds, then the single values):",
        "",
        confirmed_table(claim, goal).markdown(),
        "",
    ]


def remarks(records: Sequence[Record]) -> list[str]:
    """Return the remarks of the search's trainings, then the messages of all that failed."""
    found = []
    for record in records:
        if record.purpose not in FRESH:
            found += [f"{_name(record)}: {remark}" for remark in record.outcome.remarks]
    for record in records:
        if record.outcome.message:
            message = record.outcome.message[:MESSAGE_LENGTH]
            found.append(f"{_name(record)}: {record.outcome.ended}: {message}")
    return found


def _skipped_lines(run: dict[str, Any]) -> list[str]:
    skipped = run.get("skipped") or []
    return _section(f"Files skipped ({len(skipped)})", skipped)


def _section(heading: str, items: Sequence[str]) -> list[str]:
    """The lines of a section that is a list; none without items."""
    if not items:
        return []
    return [f"## {heading}", "", *(f"- {markdown(item)}" for item in items), ""]


def _name(record: Record) -> str:
    return "baseline" if record.baseline else f"trial {record.trial}"


def devices(records: Sequence[Record]) -> str:
    """Return the devices that trained, in words."""
    return ", ".join(sorted({record.device for record in records})) or "unknown"


def versions(records: Sequence[Record]) -> str:
    """Return the versions of the libraries; several lists if records were made with several."""
    return "; ".join(sorted(set(map(versions_of, records)))) or "unknown"


RUN_FILE = "run.json"
MOST_ROWS = 300  # trials that the printed table shows: the best-scored
WIDTH = 200  # columns at most where there is no terminal


@dataclass(frozen=True)
class Report:
    """The results of a search, as a table of its trials and what may be claimed.

    `print` shows both as text, a notebook shows them as HTML.

    Attributes:
        records: All records.
        goal: `kbatch.results.Goal`, with seconds, metric, direction, chance and target.
        validation_examples: Integer, how many examples the metric was measured on; 0 if unknown.
        ranks: The baseline, then the trials by score.
        claim: Baseline against best, from the confirmation; `None` without one.
        run: Notes of `kbatch cats-vs-dogs` on its run: `command`, `data`, `model`, `skipped`.
            Empty for a search without it.
        remarks: Tuple of strings, what kbatch assumes and does not hold for this model and data.
        prospects: `kbatch.results.prospects.Prospects`, what more search may bring; `None` for
            a search by another tuner than kbatch's, or with a target.
    """

    records: Sequence[Record]
    goal: Goal
    validation_examples: int
    ranks: Sequence[Rank]
    claim: Claim | None
    run: dict[str, Any]
    remarks: tuple[str, ...] = ()
    prospects: Prospects | None = None

    @property
    def best(self) -> Record | None:
        """A training of the recipe that `kbatch.best_recipe` gives; `None` if none ended well.

        Its `values` are the trial's hyperparameters, your own among them.
        """
        return best_of(self.records, self.dropped)

    @property
    def dropped(self) -> tuple[int, ...]:
        """Tuple of integers, the trials whose recipes left a race."""
        return () if self.claim is None else self.claim.race.dropped

    @property
    def sentences(self) -> list[str]:
        """What may be claimed, in words, what was learned, and which recipes had two speeds."""
        claimed = claim_sentences(self.claim, self.goal)
        remarks = [each for each in self.remarks if each not in claimed]
        chance = learned(self.records, self.goal, self.validation_examples)
        ahead = (
            [] if self.claim or not self.prospects else [self.prospects.words(self.goal.seconds)]
        )
        return [*remarks, *claimed, *chance, *ahead, *uneven_speeds(self.records)]

    def __str__(self) -> str:
        terminal = Console()
        width = terminal.width if terminal.is_terminal else WIDTH
        spent = f"{len(self.records)} trainings took {spent_words(self.records)}."
        claims = [f"• {sentence}" for sentence in (*self.sentences, spent)]
        more = len(self.ranks) - MOST_ROWS
        left_out = [f"{more:,} more trials, scored lower, are in trials.csv."] if more > 0 else []
        return "\n".join([text_table.rendered(self._table(), width), *left_out, *claims])

    def _repr_html_(self) -> str:
        html = table(self.ranks, self.goal.metric).html(self.sentences)
        return f"<p><b>{RANKING_TITLE}</b></p>{html}"

    def _table(self) -> Table:
        page = Table(title=RANKING_TITLE, title_justify="left")
        ranks = self.ranks[:MOST_ROWS]
        texts = table(ranks, self.goal.metric)
        for heading in texts.headings:
            page.add_column(heading, justify="left" if heading in texts.left else "right")
        for rank, row in zip(ranks, texts.rows, strict=True):
            page.add_row(*map(Text, map(str, row)), end_section=rank.record.baseline)
        return page

    def markdown(self) -> str:
        """The report as a page of Markdown."""
        return markdown_page(self.records, self.goal, self.ranks, self.claim, self.run)


@in_one_frame
def report(tuner_or_directory: Any) -> Report:
    """Report on a search: its trials by score, and what may be claimed after a confirmation.

    Use it after `search` or `kbatch.confirm`, or on the folder of a search that somebody else made.
    For a folder it needs no TensorFlow. It writes nothing; `kbatch report DIRECTORY` prints the
    same and writes tables, figures and a page of text.

    Args:
        tuner_or_directory: The tuner, or the folder of the search.

    Returns:
        A `Report`; print it, or let a notebook show it.

    Raises:
        RecordError: If there are no records, or they cannot be read.

    Example:
    ```python
    tuner.search(x, y, validation_data=(x_val, y_val))
    kbatch.confirm(tuner, seeds=5)
    print(kbatch.report(tuner))
    ```
    """
    records, goal = load_records(tuner_or_directory), load_goal(tuner_or_directory)
    examples = load_validation_examples(tuner_or_directory)
    race = load_race(tuner_or_directory)
    checks = load_checks(tuner_or_directory)
    told = [each for each in checks.values() if each.get("sentence")]
    lowest = checks.get("own values", {}).get("lowest", {})
    obstacles = [str(each["sentence"]) for each in told if each.get("claimable") is False]
    is_own = load_tuner(tuner_or_directory) == OWN
    return Report(
        records,
        goal,
        examples,
        ranking(records, goal, examples, race.dropped),
        claim_of(records, goal, examples, race, obstacles, lowest),
        _load_run(root_of(tuner_or_directory)),
        tuple(str(each["sentence"]) for each in told),
        prospects_of(records, goal, examples) if is_own else None,
    )


def write(tuner_or_directory: Any) -> list[Path]:
    """Write the tables, the figures and the page of a search into its folder.

    The files are `trials.csv`, `confirmations.csv`, `report.md` and two PNG files.
    """
    from kbatch.results.charts import draw_batches, draw_curves

    search, root = report(tuner_or_directory), root_of(tuner_or_directory)
    records_files.check_no_linked_files(root, (".csv", ".md", ".png"))
    files = [root / "trials.csv", root / CURVES, root / BATCHES, root / "report.md"]
    records_files.write(files[0], csv_of(load(root)))
    confirmations = load_confirmations(root)
    if len(confirmations):
        files.append(root / "confirmations.csv")
        records_files.write(files[-1], csv_of(confirmations))
    examples = search.validation_examples
    draw_curves(panels(search.records, search.goal, search.best), search.goal, examples, files[1])
    infos = batch_infos(search.records, search.goal, examples, load_own_optimizer(root))
    draw_batches(sample(infos, MOST_POINTS), search.goal, files[2])
    records_files.write(files[3], search.markdown())
    return files


def _load_run(root: Path) -> dict[str, Any]:
    """Read the driver's notes on its run; warn and return none if they cannot be read.

    Nothing depends on them.
    """
    try:
        run = without_controls(json.loads(records_files.read(root / RUN_FILE) or b"{}"))
        if plain_text.fits_json(run, dict[str, str | list[str]]):
            return run  # type: ignore[no-any-return]
    except (RecordError, ValueError, RecursionError):
        pass
    users_code.warn(f"{root / RUN_FILE} cannot be read, and the report says nothing of the command")
    return {}
