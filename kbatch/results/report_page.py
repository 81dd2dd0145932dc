"""The report of a search as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kbatch.goal import Goal
from kbatch.plain_text import markdown
from kbatch.records.store import FRESH, Record
from kbatch.results.claim import Claim
from kbatch.results.duration import spent_words
from kbatch.results.ranking import Rank, headings, table
from kbatch.results.sentences import claim_sentences, confirmed_table, goal_words, seconds_heading
from kbatch.results.uneven_speeds import uneven_speeds

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
    """Return the report as a page of Markdown.

    Args:
        records: All records of the search.
        goal: The goal of the search.
        ranks: The baseline, then the trials by score.
        claim: Baseline against best, or `None` without a confirmation.
        run: Notes of the driver on its run; may be empty.
    """
    lines = [
        "# What a search with kbatch found",
        "",
        *_run_lines(records, goal, run),
        *_claim_lines(records, claim, goal),
        f"## {RANKING_TITLE}",
        "",
        _markdown_table(headings(ranks, goal.metric), table(ranks)),
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
    columns = ("trial", "recipe", "seeds", "score/s", goal.metric, "test", seconds_heading(goal))
    return [
        *lines,
        "Confirmed with fresh seeds (mean ± standard error over seeds, then the single values):",
        "",
        _markdown_table(columns, confirmed_table(claim)),
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


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[markdown(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    frame = pd.DataFrame(cells, columns=[markdown(each) for each in columns])
    # Cells are shown as they are: tabulate would write 0.50 as 0.5.
    return str(frame.to_markdown(index=False, disable_numparse=True))


def _name(record: Record) -> str:
    return "baseline" if record.baseline else f"trial {record.trial}"


def devices(records: Sequence[Record]) -> str:
    """Return the devices that trained, in words."""
    return ", ".join(sorted({record.device for record in records})) or "unknown"


def versions(records: Sequence[Record]) -> str:
    """Return the versions of the libraries; several lists if records were made with several."""
    found = set()
    for record in records:
        found.add(", ".join(f"{name} {number}" for name, number in record.versions.items()))
    return "; ".join(sorted(found)) or "unknown"
