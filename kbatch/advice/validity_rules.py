"""Rules on what a training stands on: its pretrained weights, its validation data, its average."""

from __future__ import annotations

from kbatch.advice import usual_rate
from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence

LARGE_BATCH = 128  # for fine-tuning; chosen by hand
LEAKED = 0.05  # of the validation examples; fewer may be alike by chance. Chosen by hand.
# Share of the average that may still be of the first update; chosen by hand.
MOST_OF_START = 0.1


def fine_tuning(evidence: Evidence) -> Advice | None:
    """A pretrained model is trained with the batch and the rate of training from scratch."""
    recipe, model, rate = evidence.recipe, evidence.model, evidence.learning_rate
    frozen = model is not None and model.frozen > 0
    highest = usual_rate.FROM_SCRATCH.get(evidence.optimizer)
    if not (frozen or evidence.pretrained) or rate is None or highest is None:
        return None
    if recipe.batch_size < LARGE_BATCH or rate <= highest:
        return None
    looks = "The model is pretrained"
    if not evidence.pretrained and model is not None:
        looks = f"{model.frozen} of {model.layers} layers with weights are frozen, so the model "
        looks += "looks pretrained"
    return Advice(
        f"Fine-tune with a batch of 16 to 32 and {evidence.optimizer} at most {highest / 4:.2g}: "
        f"batch {recipe.batch_size} with {rate:.3g} is for training from scratch.",
        f"{looks}. Large updates overwrite what the weights have learned, and few examples make "
        "few large batches.",
        "Devlin et al. 2019 (batch 16 or 32, Adam 2e-5 to 5e-5); Li et al. 2020, Rethinking the "
        "hyperparameters for fine-tuning (arXiv:2002.11770)",
    )


def evaluated_on_training_data(evidence: Evidence) -> Advice | None:
    """Validation examples are training examples too."""
    if evidence.shared is None:
        return None
    found, looked_at = evidence.shared
    if not looked_at or found < LEAKED * looked_at:
        return None
    which = f"{found} of {looked_at} validation examples that were looked at"
    if found == looked_at:
        number = f" ({found} looked at)" if looked_at > 1 else ""
        which = f"all validation examples{number}"
    return Advice(
        f"Validate on other examples: {which} are training examples too.",
        "Their accuracy measures how well they are remembered. A search on it picks the recipe "
        "that overfits most.",
        "the inputs of these training and validation data, compared value by value",
    )


def long_average(evidence: Evidence) -> Advice | None:
    """The moving average of the weights is longer than the training."""
    ema, updates = evidence.recipe.ema, evidence.updates
    if ema is None or not updates:
        return None
    start = ema ** (updates - 1)
    if start <= MOST_OF_START:
        return None
    fitting = max(1 - 5 / updates, 0.5)
    return Advice(
        f"Take a shorter average of the weights, such as ema={fitting:.3g}: after {updates} "
        f"updates, {start:.0%} of the average with ema={ema:.3g} are of the very beginning.",
        "Validation measures the average, which is still near the weights that the training began "
        "with.",
        "the arithmetic of a moving average (ema to the power of the updates)",
    )
