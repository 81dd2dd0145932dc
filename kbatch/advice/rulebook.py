"""The rulebook: every rule of advice in one table, and the advice that they give together."""

from __future__ import annotations

from kbatch.advice import batch_rules, validity_rules
from kbatch.advice.evidence import Advice, Evidence, Rule
from kbatch.recipe_words import COMPILED, measures_noise

# First what makes all numbers worthless, then what costs most.
RULES = (
    Rule(
        "evaluated_on_training_data",
        "whether validation examples are training examples too",
        validity_rules.evaluated_on_training_data,
        ("data",),
    ),
    Rule(
        "largest_not_best",
        "whether a smaller batch is better",
        batch_rules.largest_not_best,
        ("results", "largest_batch"),
    ),
    Rule(
        "rate_not_scaled",
        "whether the learning rate suits the batch",
        batch_rules.not_scaled,
        ("rate",),
    ),
    Rule("no_warmup", "whether a raised learning rate is warmed up", batch_rules.no_warmup),
    Rule(
        "long_warmup",
        "whether warm-up ends in time",
        batch_rules.long_warmup,
        ("updates",),
        lambda evidence: evidence.recipe.warmup_updates > 0,
    ),
    Rule(
        "too_few_updates",
        "whether the training has enough updates",
        batch_rules.too_few_updates,
        ("updates",),
    ),
    Rule(
        "generalisation_gap",
        "whether larger batches lose accuracy",
        batch_rules.generalisation_gap,
        ("results",),
    ),
    Rule(
        "needless_accumulation",
        "whether the batch fits in one pass",
        batch_rules.needless_accumulation,
        ("results", "largest_batch"),
        lambda evidence: (
            evidence.recipe.accumulation_steps > 1
            and not measures_noise(evidence.recipe.batch_schedule)
        ),
    ),
    Rule(
        "small_micro_batch",
        "whether a pass is too small for BatchNormalization",
        batch_rules.small_micro_batch,
        ("model",),
        lambda evidence: evidence.examples_per_pass < batch_rules.FEWEST_EXAMPLES,
    ),
    Rule(
        "fine_tuning",
        "whether the model is fine-tuned",
        validity_rules.fine_tuning,
        ("fine-tuning",),
    ),
    Rule(
        "input_bound",
        "whether the input is fast enough",
        validity_rules.input_bound,
        ("own results",),
    ),
    Rule(
        "slow_mixed_policy",
        "whether the mixed policy is faster here",
        validity_rules.slow_mixed_policy,
    ),
    Rule(
        "long_average",
        "whether the moving average is shorter than the training",
        validity_rules.long_average,
        ("updates",),
        lambda evidence: evidence.recipe.ema is not None,
    ),
    Rule(
        "slow_statistics",
        "whether the statistics of BatchNormalization follow",
        validity_rules.slow_statistics,
        ("model and updates",),
        lambda evidence: evidence.model is None or evidence.model.momentum > 0,
    ),
    Rule(
        "edge_of_rates",
        "whether the learning rates of the search are wide enough",
        batch_rules.edge_of_rates,
        ("space",),
        lambda evidence: evidence.results is not None and evidence.recipe.optimizer != COMPILED,
    ),
    Rule(
        "edge_of_batch_sizes",
        "whether the batch sizes of the search are wide enough",
        batch_rules.edge_of_batch_sizes,
        ("space",),
        lambda evidence: evidence.results is not None,
    ),
)


def advice_on(evidence: Evidence) -> list[Advice]:
    """Return what the rules have to say, in the order of the table."""
    found = (rule.advice(evidence) for rule in RULES)
    return [advice for advice in found if advice is not None]


def unchecked(evidence: Evidence) -> list[str]:
    """Return the topics that the evidence does not suffice to judge, in words."""
    return [rule.topic for rule in RULES if not rule.is_checked(evidence)]
