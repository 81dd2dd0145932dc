"""Groups F and B: the largest batch, and that a little more does not train."""

from __future__ import annotations

import dataclasses
from typing import Any

from kbatch import Recipe, Space
from kbatch.gpu_checks._data import builder
from kbatch.gpu_checks._survival import survival
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.memory._find import find_max_batch
from kbatch.memory._max_batch import MaxBatch, Probe, recipe_of
from kbatch.memory._prober import Prober
from kbatch.memory._table import max_batches
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec
from kbatch.space import combinations

MOST_SHORTAGES, MOST_SECONDS = 2, 120.0
WHOLE_SECONDS = 300.0
TABLE_STEPS, TABLE_LARGER = 60, 1.25
LOSS = "binary_crossentropy"
AUTOTUNE = "TF_CUDNN_USE_AUTOTUNE"


def largest(scale: Scale, model: str, policy: str, jit: str) -> Result:
    """F1: find the largest batch; it must survive, and 1.15 times as many must fail."""
    recipe = _recipe(policy, jit)
    found = find_max_batch(
        builder(model, scale), recipe=recipe, memory_limit=scale.limit_bytes, loss=LOSS
    )
    lives = survival(
        _workload(scale, model, recipe),
        scale.limit_bytes,
        found.batch_size,
        steps=scale.steps,
        processes=scale.processes,
    )
    shortages = sum(not probe.passed for probe in (*found.probes, *found.confirmations))
    bound = _bound_otherwise(found)
    measured = {
        **_answer(found),
        "shortages": shortages,
        "survived": lives.answer,
        "larger_size": lives.larger_size,
        "larger": lives.larger,
    }
    problems = {
        "the answer does not survive": not lives.answer_trains,
        f"{lives.larger_size} trains too": not lives.larger_fails and not bound,
        # the need of a step varies on a CPU, more so in the small memory of a rehearsal
        "it ran out of memory more than twice": shortages > MOST_SHORTAGES and not scale.rehearsed,
        "it took too long": found.seconds > MOST_SECONDS,
    }
    return _judged(problems, measured, bound)


def peaks(scale: Scale, model: str) -> Result:
    """F2: store the first step's peak, the steady peak and the prediction, with autotuning off."""
    recipe, sizes = _recipe("float32", "plain"), (scale.batch_size, 2 * scale.batch_size)
    measured: dict[str, Any] = {}
    for name, environment in (("autotuned", {}), ("no_autotune", {AUTOTUNE: "0"})):
        workload = _workload(scale, model, recipe)
        with Prober(workload, scale.limit_bytes, environment=environment) as prober:
            static = prober.facts().static_bytes
            moments = prober.moments()
            probes = [prober.steps(size, 3) for size in sizes]
        measured[name] = [_peak(probe) for probe in probes]
        measured["predicted"] = [max(moment.total.at(size) for moment in moments) for size in sizes]
        measured["static_bytes"] = static
    told = all(each["peak_bytes"] for each in measured["autotuned"] + measured["no_autotune"])
    return Result(told, measured).unless_rehearsed(scale.rehearsed, "a CPU tunes no convolution")


def whole_card(scale: Scale) -> Result:
    """F3: find the largest batch for all of the card, without a ceiling."""
    found = find_max_batch(
        builder("cnn", scale), recipe=_recipe("float32", "plain"), loss=LOSS, ceiling=scale.ceiling
    )
    problems = {
        "there is no answer": not found.batch_size,
        "it took too long": found.seconds > WHOLE_SECONDS,
    }
    return _judged(problems, _answer(found), "")


def table(scale: Scale) -> Result:
    """B1: measure a table; each row must survive, and 1.25 times its size must fail."""
    space = Space(jit_compile=(False, True))
    if scale.rehearsed:
        space = Space(optimizer="adam", policy="float32")
    build = builder("cnn", scale)
    rows = max_batches(build, space=space, memory_limit=scale.limit_bytes, loss=LOSS)
    measured: dict[str, Any] = {"seconds": rows.seconds, "probes": rows.executed_probes}
    problems: dict[str, bool] = {"there is no row": len(rows) < len(combinations(space))}
    for row in rows:
        lives = survival(
            _workload(scale, "cnn", recipe_of(row.combination, rows.augmentation)),
            scale.limit_bytes,
            row.batch_size,
            steps=min(scale.steps, TABLE_STEPS),
            processes=1,
            larger=TABLE_LARGER,
        )
        told = {"batch_size": row.batch_size, "larger_size": lives.larger_size}
        measured[str(row.combination)] = {**told, "survived": lives.answer, "larger": lives.larger}
        problems[f"{row} does not survive"] = not lives.answer_trains
        problems[f"{row}: {lives.larger_size} trains too"] = not lives.larger_fails
    return _judged(problems, measured, "")


def _judged(problems: dict[str, bool], measured: dict[str, Any], bound: str) -> Result:
    there = [problem for problem, is_there in problems.items() if is_there]
    return Result(not there, measured, "; ".join([*there, *([bound] if bound else [])]))


def _recipe(policy: str, jit: str) -> Recipe:
    return Recipe(optimizer="sgd", learning_rate=1e-3, policy=policy, jit_compile=jit == "jit")


def _workload(scale: Scale, model: str, recipe: Recipe) -> Workload:
    return Workload(ModelSpec(builder(model, scale), loss=LOSS), (), recipe)


def _bound_otherwise(found: MaxBatch) -> str:
    """What bounds an answer, if not memory."""
    counted = "int32 max" in found.why_failing or found.most_examples
    if found.at_ceiling or found.no_faster_from or counted:
        return f"not memory bounds it: {found}"
    return ""


def _answer(found: MaxBatch) -> dict[str, Any]:
    probes = [*found.probes, *found.confirmations]
    return {
        "batch_size": found.batch_size,
        "said": str(found),
        "seconds": found.seconds,
        "predicted": found.predicted,
        "probes": [dataclasses.asdict(probe) for probe in probes],
    }


def _peak(probe: Probe) -> dict[str, Any]:
    return {
        "batch_size": probe.batch_size,
        "ended": probe.ended,
        "first_peak_bytes": getattr(probe, "first_peak_bytes", None),
        "peak_bytes": probe.peak_bytes,
    }
