"""Report: everything a search found, as a value that prints itself, and as files. Needs no TensorFlow; asked by users."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbatch import json_form, notebook
from kbatch.errors import RecordError
from kbatch.records import atomic_file
from kbatch.records.record import Record
from kbatch.results.best import best_of
from kbatch.results.claim import Claim, claim_of
from kbatch.results.figure_data import batch_infos, panels
from kbatch.results.figures import draw_batches, draw_curves
from kbatch.results.loading import (
    load,
    load_confirmations,
    load_goal,
    load_own_optimizer,
    load_records,
    load_validation_examples,
    root_of,
)
from kbatch.results.ranking import Rank, headings, ranking, table
from kbatch.results.sentences import claim_sentences, confirmed_table, goal_words, seconds_heading

RUN_FILE = "run.json"
CURVES, BATCHES = "accuracy_over_seconds.png", "batch_size.png"
TITLE = "Recipes by score, each trained once"
WIDTH = 200  # columns at most where there is no terminal
TEXTS = ("trial", "recipe", "own hyperparameters", "ended", "")


@dataclass(frozen=True)
class Report:
    """What the records of a search say; its `str()` is the table and the claim, and a notebook shows them as HTML.

    Attributes:
        records: All records.
        goal: `seconds`, `metric`, `direction`, `chance`, `target`.
        validation_examples: Integer, how many examples the metric was measured on; 0 if unknown.
        ranks: The baseline, then the trials by score.
        claim: Baseline against best, from the confirmation; `None` without one.
        run: What the driver noted of the run: `command`, `data`, `skipped`; empty for a search
            without the driver.
    """

    records: Sequence[Record]
    goal: dict[str, Any]
    validation_examples: int
    ranks: Sequence[Rank]
    claim: Claim | None
    run: dict[str, Any]

    @property
    def best(self) -> Record | None:
        """A training of the recipe that `kbatch.best_recipe` gives, with your own hyperparameters' `values`; `None` if none ended well."""
        return best_of(self.records)

    @property
    def sentences(self) -> list[str]:
        """What may be claimed, in words."""
        return claim_sentences(self.claim, self.goal)

    def __str__(self) -> str:
        terminal = Console()
        page = Console(
            file=io.StringIO(),
            width=terminal.width if terminal.is_terminal else WIDTH,
            color_system=None,
            force_jupyter=False,
        )
        page.print(self._table())
        for sentence in self.sentences:
            page.print(f"• {sentence}", highlight=False, markup=False, soft_wrap=True)
        assert isinstance(page.file, io.StringIO)
        return page.file.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<p><b>{TITLE}</b></p>" + notebook.table(
            headings(self.ranks, self.goal["metric"]), table(self.ranks), self.sentences
        )

    def _table(self) -> Table:
        page = Table(title=TITLE, title_justify="left")
        for heading in headings(self.ranks, self.goal["metric"]):
            page.add_column(heading, justify="left" if heading in TEXTS else "right")
        for rank, row in zip(self.ranks, table(self.ranks), strict=True):
            page.add_row(*map(Text, row), end_section=rank.record.baseline)
        return page

    def markdown(self) -> str:
        """The report as a page of Markdown."""
        goal, run = self.goal, self.run
        lines = ["# What a search with kbatch found", ""]
        lines += [f"- {name}: {run[name]}" for name in ("command", "data", "model") if name in run]
        lines += [
            f"- goal: {goal_words(goal)}",
            f"- device: {_device(self.records)}",
            f"- versions: {_versions(self.records)}",
            "",
        ]
        lines += [
            "## Baseline against best",
            "",
            *[f"- {sentence}" for sentence in self.sentences],
            "",
        ]
        if self.claim:
            head = [
                "trial",
                "recipe",
                "seeds",
                "score/s",
                goal["metric"],
                "test",
                seconds_heading(goal),
            ]
            lines += [
                "Confirmed with fresh seeds (mean ± standard error over seeds, then the single values):",
                "",
            ]
            lines += [*_markdown_table(head, confirmed_table(self.claim)), ""]
        lines += [
            f"## {TITLE}",
            "",
            *_markdown_table(headings(self.ranks, goal["metric"]), table(self.ranks)),
            "",
        ]
        lines += [
            f"![{goal['metric']} over training seconds]({CURVES})",
            "",
            f"![against batch size]({BATCHES})",
            "",
        ]
        searched = [record for record in self.records if record.purpose != "confirmation"]
        remarks = [
            f"- {_name(record)}: {remark}"
            for record in searched
            for remark in record.outcome.remarks
        ]
        remarks += [
            f"- {_name(record)}: {record.outcome.ended}: {record.outcome.message[:200]}"
            for record in self.records
            if record.outcome.message
        ]
        lines += ["## Remarks", "", *remarks, ""] if remarks else []
        if run.get("skipped"):
            lines += [
                f"## Files skipped ({len(run['skipped'])})",
                "",
                *[f"- {name}" for name in run["skipped"]],
                "",
            ]
        return "\n".join(lines)


def report(tuner_or_directory: Any) -> Report:
    """What a search found: its trials by score, and what may be claimed after a confirmation.

    Use it after `search` or `kbatch.confirm`, or on the folder of a search that somebody else made.
    It needs no TensorFlow for a folder and writes nothing; `kbatch report DIRECTORY` prints the
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
    kbatch.confirm(tuner, x, y, validation_data=(x_val, y_val), seeds=5)
    print(kbatch.report(tuner))
    ```
    """
    records, goal = load_records(tuner_or_directory), load_goal(tuner_or_directory)
    examples = load_validation_examples(tuner_or_directory)
    run = _run_of(root_of(tuner_or_directory))
    return Report(
        records,
        goal,
        examples,
        ranking(records, goal, examples),
        claim_of(records, goal, examples),
        run,
    )


def _run_of(root: Path) -> dict[str, Any]:
    """What the driver noted of its run, which nothing depends on: what cannot be read is left out, and said."""
    try:
        run = json.loads(atomic_file.read(root / RUN_FILE) or b"{}")
        if json_form.fits(run, dict[str, str | list[str]]):
            return run  # type: ignore[no-any-return]
    except (RecordError, ValueError, RecursionError):
        pass
    warnings.warn(
        f"{root / RUN_FILE} cannot be read, and the report says nothing of the command",
        stacklevel=3,
    )
    return {}


def write(tuner_or_directory: Any) -> list[Path]:
    """Write `trials.csv`, `confirmations.csv`, `report.md` and the figures into a folder that holds records.

    Args:
        tuner_or_directory: The tuner, the folder of a search, or the folder that
            `kbatch cats-vs-dogs` wrote.

    Returns:
        The files written.
    """
    found, root = report(tuner_or_directory), root_of(tuner_or_directory)
    files = [root / "trials.csv", root / CURVES, root / BATCHES, root / "report.md"]
    atomic_file.write(files[0], load(root).to_csv(index=False))
    again = load_confirmations(root)
    if len(again):
        files.append(root / "confirmations.csv")
        atomic_file.write(files[-1], again.to_csv(index=False))
    draw_curves(panels(found.records, found.goal), found.goal, found.validation_examples, files[1])
    infos = batch_infos(
        found.records, found.goal, found.validation_examples, load_own_optimizer(root)
    )
    draw_batches(infos, found.goal, files[2])
    atomic_file.write(files[3], found.markdown())
    return files


def _markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def _name(record: Record) -> str:
    return "baseline" if record.baseline else f"trial {record.trial}"


def _device(records: Sequence[Record]) -> str:
    return ", ".join(sorted({record.device for record in records})) or "unknown"


def _versions(records: Sequence[Record]) -> str:
    return (
        "; ".join(
            sorted(
                {
                    ", ".join(f"{name} {number}" for name, number in record.versions.items())
                    for record in records
                }
            )
        )
        or "unknown"
    )
