"""Rules on the batch size, its passes and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED, measures_noise
from kbatch.results import _advice_evidence as advice_evidence
from kbatch.results._advice_evidence import Advice, Evidence, PastTraining, Results, best, most_held
from kbatch.rules import scaling
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE

FEWEST_UPDATES = 100  # of a training, for its learning rate to matter; chosen by hand
GAP = 0.02  # of accuracy, that a large batch may lose: two points
AS_MANY = 0.8  # times the examples of the smaller batch; chosen by hand
FASTER = 1.2  # times as many examples per second: a batch that is worth saving; chosen by hand
NEAR_RATE = 2.0  # times, between rates at batch 32 that are taken for one; chosen by hand
ENOUGH_TRIALS = 2  # at the large batch, so that one bad rate is no gap


def largest_not_best(evidence: Evidence) -> Advice | None:
    """A smaller batch did better than the recipe's, or the recipe takes the largest that fits."""
    size = evidence.recipe.batch_size
    found = _better_smaller(evidence)
    if found is not None:
        smaller, own = found
        held = ""
        if smaller.value is not None and own.value is not None:
            held = f", and held {smaller.value:.3f} against {own.value:.3f}"
        largest = size == max(each.recipe.batch_size for each in evidence.trainings)
        which = f"{size}, the largest that was tried" if largest else f"{size}"
        return Advice(
            f"Take batch {smaller.recipe.batch_size} instead of {which}: it scored "
            f"{smaller.score:.3g} per second against {own.score:.3g}{held}.",
            "The largest batch is rarely the best: it is faster per example, but has fewer and "
            "less noisy updates. The difference is larger than noise.",
            f"{smaller.name} and {own.name} of these results; Masters & Luschi 2018 "
            "(arXiv:1804.07612)",
        )
    limit = evidence.largest_batch
    tried = any(each.recipe.batch_size == size for each in evidence.trainings)
    if limit is None or tried or size != limit or size <= REFERENCE_BATCH_SIZE:
        return None
    return Advice(
        f"Try smaller batches too, such as {REFERENCE_BATCH_SIZE}: {size} is the largest that "
        "fits, and no trial shows that it is good.",
        "How much fits says nothing of accuracy. Small batches reach the best accuracy over a "
        "wider range of learning rates.",
        "the table of largest batches; Masters & Luschi 2018 (arXiv:1804.07612)",
    )


def too_few_updates(evidence: Evidence) -> Advice | None:
    """The batch is so large that the training has few updates."""
    size, updates = evidence.recipe.batch_size, evidence.updates
    if not updates or updates >= FEWEST_UPDATES or size <= REFERENCE_BATCH_SIZE:
        return None
    smaller = [each for each in evidence.trainings if each.recipe.batch_size < size]
    if smaller and evidence.own_trainings and _better_smaller(evidence) is None:
        return None  # the results say that it did no harm
    enough = max(REFERENCE_BATCH_SIZE, size * updates // FEWEST_UPDATES)
    suggested = 1 << (enough.bit_length() - 1)  # a power of two
    return Advice(
        f"Take a batch of {suggested}, or train longer: batch {size} makes only {updates} "
        "updates in this training.",
        "What a training reaches depends on the number of its updates more than on the batch. "
        f"Below about {FEWEST_UPDATES} it has hardly begun.",
        "Hoffer et al. 2017, Train longer, generalize better (arXiv:1705.08741)",
    )


def generalisation_gap(evidence: Evidence) -> Advice | None:
    """A larger, faster batch held over two points less than a smaller one on as many examples."""
    results = evidence.results
    if results is None or not results.of_shares:
        return None
    gaps = sorted(_gaps(results), key=lambda pair: -pair[1].recipe.batch_size)
    own = [pair for pair in gaps if pair[1].recipe.batch_size == evidence.recipe.batch_size]
    for small, large in [*own, *gaps]:
        size = large.recipe.batch_size
        alike = [each.recipe for each in results.trainings if each.recipe.batch_size == size]
        remedies = _untried([*alike, *([evidence.recipe] if size == _size(evidence) else [])])
        if remedies:
            points = 100 * ((small.value or 0) - (large.value or 0))
            return Advice(
                f"Before you give up batch {size}, try {remedies}: it held {points:.1f} points "
                f"less than batch {small.recipe.batch_size} ({large.value:.3f} against "
                f"{small.value:.3f}).",
                f"Batch {size} went through {large.examples_per_second:,.0f} examples per second "
                f"against {small.examples_per_second:,.0f} and saw as many, so it lost accuracy, "
                "not time. Each of these is known to give back a part of such a gap.",
                f"{small.name} and {large.name} of these results; Keskar et al. 2017 "
                "(arXiv:1609.04836), Goyal et al. 2017, Foret et al. 2021, Hoffer et al. 2017",
            )
    return None


def edge_of_batch_sizes(evidence: Evidence) -> Advice | None:
    """The best batch size of a search is its smallest or largest, and no other is as good."""
    results, size = evidence.results, evidence.recipe.batch_size
    searched = evidence.space.get("batch_size") or ()
    tried = [each for each in evidence.trainings if each.trial >= 0]
    first = best(tried)
    others = [each for each in tried if each.recipe.batch_size != size]
    if results is None or first is None or first.recipe != evidence.recipe or not others:
        return None
    if len(searched) < 2 or size not in (min(searched), max(searched)):
        return None
    if not all(results.clearly_better(first, each) for each in others):
        return None
    further = size // 2 if size == min(searched) else size * 2
    examples, limit = evidence.training_examples, evidence.largest_batch
    if not 0 < further <= (examples or further) or further > (limit or further):
        return None
    end = "smallest" if size == min(searched) else "largest"
    return Advice(
        f"Add {further} to the batch sizes: {size} is the {end} of the search and clearly the "
        "best.",
        f"It is better than all {len(others)} trials of other batch sizes by more than noise, so "
        "the best one may lie outside.",
        f"{first.name} of these results",
    )


def _size(evidence: Evidence) -> int:
    return evidence.recipe.batch_size


def _better_smaller(evidence: Evidence) -> tuple[PastTraining, PastTraining] | None:
    """The best training of a smaller batch, and the best of the recipe's, if that is worse."""
    results, size = evidence.results, evidence.recipe.batch_size
    if results is None:
        return None
    own = best([each for each in results.trainings if each.recipe.batch_size == size])
    smaller = best([each for each in results.trainings if each.recipe.batch_size < size])
    if own is None or smaller is None or not results.clearly_better(smaller, own):
        return None
    return smaller, own


def _gaps(results: Results) -> Iterator[tuple[PastTraining, PastTraining]]:
    """Pairs of a smaller and a larger batch, of which the larger one held clearly less."""
    sizes = sorted({each.recipe.batch_size for each in results.trainings})
    for position, large in enumerate(sizes):
        of_large = [each for each in results.trainings if each.recipe.batch_size == large]
        most = most_held(of_large)
        for small in sizes[:position]:
            held = most_held([each for each in results.trainings if _at(each, small)])
            if most is None or held is None or not _is_fair(held, most, of_large):
                continue
            lost, noise = (held.value or 0) - (most.value or 0), results.noise_of(held, most)
            if noise is not None and lost > max(GAP, noise):
                yield held, most


def _at(training: PastTraining, size: int) -> bool:
    return training.recipe.batch_size == size


def _is_fair(small: PastTraining, large: PastTraining, of_large: Sequence[PastTraining]) -> bool:
    """Whether only the batch can explain a gap: as many examples, faster, and no one bad rate."""
    if large.examples < AS_MANY * small.examples:
        return False
    if large.examples_per_second < FASTER * small.examples_per_second:
        return False
    rates = (small.learning_rate_at_32, large.learning_rate_at_32)
    if small.recipe.optimizer == large.recipe.optimizer and None not in rates:
        low, high = sorted(rate or 0.0 for rate in rates)
        if high <= NEAR_RATE * low:
            return True
    return len(of_large) >= ENOUGH_TRIALS


def _untried(recipes: Sequence[Recipe]) -> str:
    """The remedies that none of the recipes of a large batch has, in words."""
    rated = [recipe for recipe in recipes if recipe.learning_rate is not None]
    remedies = {
        "warm-up": rated and not any(recipe.warmup_updates for recipe in recipes),
        "weight decay (weight_decay=0.01)": rated
        and not any(recipe.weight_decay for recipe in recipes),
        'SAM (training="sam:0.05")': all(recipe.training == "plain" for recipe in recipes),
        "augmentation": all(recipe.augmentation == "none" for recipe in recipes),
    }
    words = [remedy for remedy, untried in remedies.items() if untried]
    return ", ".join([*words, "or longer training"]) if words else ""


# Examples of a pass below which the statistics of batch normalization are noise (Wu & He 2018:
# below 16 images per GPU the error of ResNet-50 rises).
FEWEST_EXAMPLES = 16


def needless_accumulation(evidence: Evidence) -> Advice | None:
    """Several passes per update, though the whole batch fits in one."""
    recipe, shown = evidence.recipe, evidence.fits_in_one_pass()
    if recipe.accumulation_steps == 1 or shown is None or measures_noise(recipe.batch_schedule):
        return None
    if isinstance(shown, int):
        fits, source = f"{shown} examples fit", "the largest batch that was measured to fit"
    else:
        fits = f"{shown.name} trained {shown.recipe.examples_per_pass} examples in one pass"
        source = f"{shown.name} of these results"
    return Advice(
        f"Take the batch of {recipe.batch_size} in one pass (micro_batch_size=None), not in "
        f"{recipe.accumulation_steps} of {recipe.micro_batch_size}: {fits}.",
        "Accumulation gives the same update up to rounding, but smaller passes use the device "
        "less and the gradients take room of their own.",
        source,
    )


def small_micro_batch(evidence: Evidence) -> Advice | None:
    """Batch normalization measures fewer than 16 examples at a time."""
    recipe, model, size = evidence.recipe, evidence.model, evidence.examples_per_pass
    if model is None or recipe.normalization != "batch":
        return None
    layers = model.batch_normalizations
    if model.synchronized and evidence.first_pass < FEWEST_EXAMPLES:
        layers, size = layers + model.synchronized, evidence.first_pass
    if not layers or size >= FEWEST_EXAMPLES:
        return None
    larger = f"a micro-batch of at least {FEWEST_EXAMPLES}"
    if recipe.batch_size < FEWEST_EXAMPLES * evidence.devices:
        larger = f"a batch of at least {FEWEST_EXAMPLES * evidence.devices}"
    begins = ""
    if recipe.growth.factor > 1:
        larger = f"a batch that begins with passes of at least {FEWEST_EXAMPLES}"
        begins = " when the training begins"
    number = "1 BatchNormalization layer" if layers == 1 else f"{layers} BatchNormalization layers"
    return Advice(
        f'Take {larger}, or normalization="group": the {number} of the model '
        f"{'measures' if layers == 1 else 'measure'} {size} examples at a time{begins}.",
        "Mean and variance of so few examples are noise, and validation uses other ones. "
        "Accumulation does not help, since each pass is measured by itself.",
        "Wu & He 2018, Group Normalization (arXiv:1803.08494)",
    )


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
    unscaled = of_all > 0 or advice_evidence.is_usual(optimizer, rate)
    if not unscaled or _raised_was_tried(evidence, rate):
        return None
    better = rate * advice_evidence.factor(optimizer, recipe.batch_size)
    name = "the model's own optimizer" if recipe.optimizer == COMPILED else optimizer
    seen = f"; {of_all} batch sizes were tried, all with this one rate" if of_all else ""
    return Advice(
        f"Scale the learning rate with the batch: at batch {recipe.batch_size}, {times:.3g} times "
        f"32, {name} takes about {better:.2g} instead of {rate:.3g}.",
        f"{rate:.3g} is a rate for batch 32{seen}. A batch {times:.3g} times as large gives that "
        "many times fewer updates in a pass, so each must go further.",
        advice_evidence.SOURCES[advice_evidence.rule_of(optimizer)],
    )


def no_warmup(evidence: Evidence) -> Advice | None:
    """A raised learning rate at eight times batch 32 or more, from the first update on."""
    recipe, rate = evidence.recipe, evidence.recipe.learning_rate
    first_batch = recipe.batch_size / recipe.growth.factor
    if recipe.warmup_updates or rate is None or first_batch < VERY_LARGE * REFERENCE_BATCH_SIZE:
        return None
    usual = advice_evidence.USUAL.get(recipe.optimizer)
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
