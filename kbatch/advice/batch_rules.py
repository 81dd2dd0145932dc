"""Rules on the batch size: the largest is rarely the best, and a gap has its remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence
from kbatch.advice.past_results import PastTraining, Results, best, most_held
from kbatch.recipe import Recipe
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
