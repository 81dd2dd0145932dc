"""Report: everything a search found, written into a folder: a table, a page of text and figures. Needs no TensorFlow."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.records import fingerprint, whole
from kbatch.records.record import Record
from kbatch.results.claim import Claim, Mean, Side, claim_of
from kbatch.results.figures import batch_infos, curve_infos, draw_batches, draw_curves
from kbatch.results.loading import folder_of, load, load_confirmations, load_goal, load_records
from kbatch.results.ranking import Rank, cells, headings, ranking

RUN_FILE = "run.json"
CURVES, BATCHES = "accuracy_over_seconds.png", "batch_size.png"


@dataclass(frozen=True)
class Findings:
    """What a folder of records says.

    Attributes:
        records: All records.
        goal: `seconds`, `metric`, `direction`, `chance`, `target`.
        ranks: Trials and baseline by score.
        claim: Baseline against best, from the confirmation; `None` without one.
        run: What the driver noted of the run: `command`, `data`, `skipped`; empty for a search without the driver.
    """

    records: Sequence[Record]
    goal: dict[str, Any]
    ranks: Sequence[Rank]
    claim: Claim | None
    run: dict[str, Any]


def findings(directory: str | os.PathLike[str]) -> Findings:
    """Read what a folder of records says.

    Raises:
        RecordError: If it holds no records.
    """
    records, goal = load_records(directory), load_goal(directory)
    facts = fingerprint.load(folder_of(directory)) or {}
    examples = int(facts.get("data", {}).get("validation", {}).get("examples", 0))
    again = [record for record in records if record.purpose == "confirmation"]
    claim = claim_of(again, goal["seconds"], goal["metric"], goal["direction"], goal["chance"], examples)
    notes = Path(directory) / RUN_FILE
    run = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    return Findings(records, goal, ranking(records, goal["metric"], examples), claim, run)


def write(directory: str | os.PathLike[str]) -> list[Path]:
    """Write `trials.csv`, `confirmations.csv`, `report.md` and the figures into a folder that holds records.

    Args:
        directory: Folder of a search, or the folder that `kbatch cats-vs-dogs` wrote.

    Returns:
        The files written.
    """
    found, root = findings(directory), Path(directory)
    metric = found.goal["metric"]
    files = [root / "trials.csv", root / CURVES, root / BATCHES, root / "report.md"]
    whole.write(files[0], load(directory).to_csv(index=False))
    again = load_confirmations(directory)
    if len(again):
        files.append(root / "confirmations.csv")
        whole.write(files[-1], again.to_csv(index=False))
    draw_curves(curve_infos(found.records), metric, found.goal["seconds"], found.goal["chance"], files[1])
    draw_batches(batch_infos(found.records), metric, files[2])
    whole.write(files[3], markdown(found))
    return files


def claim_sentences(claim: Claim | None, goal: dict[str, Any]) -> list[str]:
    """What may be claimed, in words: baseline -> best, with the spread over seeds.

    Args:
        claim: The claim, or `None` if nothing was confirmed.
        goal: The goal of the search.
    """
    if claim is None:
        return ["Nothing was confirmed with fresh seeds, so nothing is claimed: the highest of many noisy scores flatters."]
    base, best, metric = claim.baseline, claim.best, goal["metric"]
    seeds = "1 fresh seed" if best.seeds == 1 else f"{best.seeds} fresh seeds"
    sentences = [
        f"baseline -> best over {seeds} each: {base.recipe} -> {best.recipe} (trial {best.trial})",
        f"score (x 1000 per second): {_scaled(base.score)} -> {_scaled(best.score)}, {claim.standard_errors:+.1f} standard errors",
        f"{metric} held within {goal['seconds']:.4g} training seconds: {_spread(base.value)} -> {_spread(best.value)}",
    ]
    if best.missed:
        reach = f"{best.seeds - best.missed} of {best.seeds} runs of the best recipe reach the baseline's final {metric} within the horizon"
    else:
        reach = f"the best recipe reaches the baseline's final {metric} ({base.value.mean:.3f}) in {best.seconds_to_baseline:.2f} s"
    speed = f"; the baseline holds it after {base.seconds_to_baseline:.2f} s: {claim.speed_up:.1f} times sooner" if claim.speed_up else ""
    sentences.append(reach + speed)
    if base.test and best.test:
        sentences.append(f"{metric.removeprefix('val_')} on test data nobody chose by: {_spread(base.test)} -> {_spread(best.test)}")
    if claim.standard_errors <= -2:
        sentences.append("The baseline is better than what the search found: keep it, or give the search more trials or seconds.")
    elif not claim.standard_errors >= 2:
        sentences.append("This is within noise: do not claim that either is better. Give the search more trials, seconds or seeds.")
    return sentences


def markdown(found: Findings) -> str:
    """The report as a page of Markdown."""
    goal, run = found.goal, found.run
    lines = ["# What a search with kbatch found", ""]
    lines += [f"- {name}: {run[name]}" for name in ("command", "data", "model") if name in run]
    lines += [f"- goal: {_goal_words(goal)}", f"- device: {_device(found.records)}", f"- versions: {_versions(found.records)}", ""]
    lines += ["## Baseline against best", "", *[f"- {sentence}" for sentence in claim_sentences(found.claim, goal)], ""]
    if found.claim:
        lines += ["Confirmed, each over fresh seeds (mean ± standard error over seeds):", "", *_confirmed_table(found.claim, goal), ""]
    lines += ["## Recipes by score", "", *_table(headings(goal["metric"]), [cells(rank) for rank in found.ranks]), ""]
    lines += [f"![{goal['metric']} over training seconds]({CURVES})", "", f"![against batch size]({BATCHES})", ""]
    remarks = [f"- {_name(record)}: {remark}" for record in found.records for remark in record.outcome.remarks if record.purpose != "confirmation"]
    remarks += [f"- {_name(record)}: {record.outcome.ended}: {record.outcome.message[:200]}" for record in found.records if record.outcome.message]
    lines += ["## Remarks", "", *remarks, ""] if remarks else []
    if run.get("skipped"):
        lines += [f"## Files skipped ({len(run['skipped'])})", "", *[f"- {name}" for name in run["skipped"]], ""]
    return "\n".join(lines)


def _confirmed_table(claim: Claim, goal: dict[str, Any]) -> list[str]:
    rows = [_confirmed_row(side) for side in (claim.baseline, claim.best, *claim.others)]
    return _table(["trial", "recipe", "seeds", "score x 1000", goal["metric"], "test", "s to baseline's final"], rows)


def _confirmed_row(side: Side) -> list[str]:
    reached = f"{side.seconds_to_baseline:.2f}" + (f" ({side.missed} of {side.seeds} did not)" if side.missed else "")
    test = _spread(side.test) if side.test else "-"
    name = "baseline" if side.trial < 0 else str(side.trial)
    return [name, side.recipe, str(side.seeds), _scaled(side.score), _spread(side.value), test, reached]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def _goal_words(goal: dict[str, Any]) -> str:
    target = f", target {goal['target']:.4g}" if goal.get("target") is not None else ""
    return f"{goal['metric']} held, {goal['seconds']:.4g} training seconds a trial, chance {goal['chance']:.4g}{target}"


def _name(record: Record) -> str:
    return "baseline" if record.baseline else f"trial {record.trial}"


def _device(records: Sequence[Record]) -> str:
    return ", ".join(sorted({record.device for record in records})) or "unknown"


def _versions(records: Sequence[Record]) -> str:
    return "; ".join(sorted({", ".join(f"{name} {number}" for name, number in record.versions.items()) for record in records})) or "unknown"


def _spread(mean: Mean) -> str:
    return f"{mean.mean:.3f}" + ("" if math.isnan(mean.error) else f" ± {mean.error:.3f}")


def _scaled(mean: Mean) -> str:
    return f"{1000 * mean.mean:.1f}" + ("" if math.isnan(mean.error) else f" ± {1000 * mean.error:.1f}")
