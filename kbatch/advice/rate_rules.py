"""Rules on the learning rate: scaled with the batch, warmed up, and searched widely enough."""

from __future__ import annotations

import math

from kbatch.advice import usual_rate
from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence
from kbatch.advice.past_results import PastTraining, best
from kbatch.recipe_fields import COMPILED
from kbatch.rules import scaling
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE

# Times batch 32 from which an unscaled rate is worth a word, and from which warm-up is (the issue
# of most guides). Chosen by hand.
LARGE, VERY_LARGE = 4, 8
RAISED = 1.5  # times a usual rate: a rate that was raised for a large batch; chosen by hand
MOST_WARMUP = 0.5  # of a training; chosen by hand
EDGE = 0.05  # of a range, on its log scale; chosen by hand
WARM_ALWAYS = ("lars", "lamb")  # whose authors warm up in every experiment


def not_scaled(evidence: Evidence) -> Advice | None:
    """The learning rate of a large batch is what one uses at 32, or that of all other batches."""
    recipe, optimizer, rate = evidence.recipe, evidence.optimizer, evidence.learning_rate
    times = recipe.batch_size / REFERENCE_BATCH_SIZE
    if times < LARGE or rate is None or evidence.pretrained or evidence.is_fine_tuning:
        return None
    of_all = _one_rate_for_all(evidence, rate)
    unscaled = of_all > 0 or usual_rate.is_usual(optimizer, rate)
    if not unscaled or _raised_was_tried(evidence, rate):
        return None
    better = rate * usual_rate.factor(optimizer, recipe.batch_size)
    name = "the model's own optimizer" if recipe.optimizer == COMPILED else optimizer
    seen = f"; {of_all} batch sizes were tried, all with this one rate" if of_all else ""
    return Advice(
        f"Scale the learning rate with the batch: at batch {recipe.batch_size}, {times:.3g} times "
        f"32, {name} takes about {better:.2g} instead of {rate:.3g}.",
        f"{rate:.3g} is a rate for batch 32{seen}. A batch {times:.3g} times as large gives that "
        "many times fewer updates in a pass, so each must go further.",
        usual_rate.SOURCES[usual_rate.rule_of(optimizer)],
    )


def no_warmup(evidence: Evidence) -> Advice | None:
    """A raised learning rate at eight times batch 32 or more, from the first update on."""
    recipe, rate = evidence.recipe, evidence.recipe.learning_rate
    first_batch = recipe.batch_size / recipe.growth.factor
    if recipe.warmup_updates or rate is None or first_batch < VERY_LARGE * REFERENCE_BATCH_SIZE:
        return None
    usual = usual_rate.USUAL.get(recipe.optimizer)
    if recipe.optimizer not in WARM_ALWAYS and (usual is None or rate < RAISED * max(usual)):
        return None
    examples = evidence.training_examples
    over = "the first pass over the data"
    if examples is not None:
        # of a short training at least one update
        over = f"the first {max(scaling.updates_of_warmup(recipe.batch_size, examples), 1)} updates"
    return Advice(
        f"Let the learning rate rise over {over}: batch {recipe.batch_size} with {recipe.optimizer}"
        f" {rate:.3g} has no warm-up (warmup_updates=0).",
        "A rate that was raised for a large batch is too large for the first, steep updates, and "
        "may spoil what the training could reach.",
        "Goyal et al. 2017 (arXiv:1706.02677); You et al. 2020 for LAMB (arXiv:1904.00962)",
    )


def long_warmup(evidence: Evidence) -> Advice | None:
    """Warm-up takes most of the training."""
    updates, warm = evidence.updates, evidence.recipe.warmup_updates
    if not updates or warm <= MOST_WARMUP * updates:
        return None
    most = int(scaling.MOST_WARMUP * updates)
    return Advice(
        f"Shorten warm-up to about {most} updates, or train longer: it takes {warm} of the "
        f"{updates} updates of the training.",
        "Below its own learning rate for most of the time, this is another recipe than the one it "
        "says it is.",
        "kbatch's own searches give warm-up at most a tenth of a training (kbatch.rules.scaling)",
    )


def edge_of_rates(evidence: Evidence) -> Advice | None:
    """The best rate of a search is at the edge of the range, and nothing inside is as good."""
    results, recipe = evidence.results, evidence.recipe
    searched = (evidence.space.get("learning_rate") or {}).get(recipe.optimizer)
    if results is None or not isinstance(searched, (list, tuple)) or len(searched) != 2:
        return None
    lowest, highest = searched
    tried = [each for each in evidence.trainings if each.trial >= 0 and each.learning_rate_at_32]
    first = best([each for each in tried if each.recipe.optimizer == recipe.optimizer])
    if first is None or first.recipe != recipe or not results.of_shares or not lowest < highest:
        return None
    place = _place(first, lowest, highest)
    inside = [
        each
        for each in tried
        if each.recipe.optimizer == recipe.optimizer
        and abs(_place(each, lowest, highest) - place) > EDGE
    ]
    if EDGE < place < 1 - EDGE or not inside:
        return None
    if not all(results.clearly_better(first, each) for each in inside):
        return None
    end, further = ("lowest", lowest / 10) if place < EDGE else ("highest", highest * 10)
    return Advice(
        f"Widen the learning rates of {recipe.optimizer} to {further:.3g}: the best trial took "
        f"{first.learning_rate_at_32:.3g} at batch 32, near the {end} of {lowest:.3g} to "
        f"{highest:.3g}.",
        f"It is better than all {len(inside)} trials further inside by more than noise, so the "
        "best rate may lie outside.",
        f"{first.name} of these results",
    )


def _place(training: PastTraining, lowest: float, highest: float) -> float:
    """Where a rate lies in a range, from 0 to 1 on a log scale."""
    rate = training.learning_rate_at_32 or lowest
    return math.log(rate / lowest) / math.log(highest / lowest)


def _one_rate_for_all(evidence: Evidence, rate: float) -> int:
    """How many batch sizes were tried with this rate alone; 0 if another was tried, or one size."""
    recipe = evidence.recipe
    alike = [each for each in evidence.trainings if each.recipe.optimizer == recipe.optimizer]
    sizes = {each.recipe.batch_size for each in alike} | {recipe.batch_size}
    rates = {each.learning_rate for each in alike} | {rate}
    changed = max(sizes) >= LARGE * min(sizes) and recipe.batch_size == max(sizes)
    return len(sizes) if alike and changed and len(rates) == 1 else 0


def _raised_was_tried(evidence: Evidence, rate: float) -> bool:
    """Whether the results hold a raised rate at this batch: then they decide, not a rule."""
    return any(
        each.recipe.optimizer == evidence.recipe.optimizer
        and each.recipe.batch_size == evidence.recipe.batch_size
        and (each.learning_rate or 0) >= RAISED * rate
        for each in evidence.trainings
    )
