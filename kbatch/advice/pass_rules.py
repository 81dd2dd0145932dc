"""Rules on the passes of an update: no more than memory asks for, and none too small."""

from __future__ import annotations

from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence
from kbatch.batch_growth import measures_noise

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
