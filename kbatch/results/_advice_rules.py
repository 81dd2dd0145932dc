"""Rules on validity and speed, and the table of all rules."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kbatch.recipe_words import COMPILED, measures_noise
from kbatch.results import _advice_batch
from kbatch.results import _advice_evidence as advice_evidence
from kbatch.results._advice_evidence import Advice, Evidence, PastTraining
from kbatch.rules.scaling import REFERENCE_BATCH_SIZE
from kbatch.runtime import device

# Fine-tuning takes batches of 16 or 32 (Devlin et al. 2019) to 256 (Li et al. 2020). Kolesnikov et
# al. 2020 take 512, for 500 updates or more also where examples are few.
LARGEST_BATCH, ENOUGH_UPDATES = 256, 500
LEAKED = 0.05  # of the validation examples; fewer may be alike by chance. Chosen by hand.
# Share of the average that may still be of the first update; chosen by hand.
MOST_OF_START = 0.1


def fine_tuning(evidence: Evidence) -> Advice | None:
    """Pretrained weights are trained on with the batch or the rate of training from scratch."""
    recipe, optimizer, rate = evidence.recipe, evidence.optimizer, evidence.learning_rate
    if not evidence.is_fine_tuning:
        return None
    updates = evidence.updates
    large = recipe.batch_size > LARGEST_BATCH and (updates is None or updates < ENOUGH_UPDATES)
    steep = rate is not None and advice_evidence.is_from_scratch(optimizer, rate, recipe.batch_size)
    if not large and not steep:
        return None
    take, is_for = [], []
    if large:
        take.append("a batch of 16 to 32")
        is_for.append(f"batch {recipe.batch_size}")
    if steep:
        size = REFERENCE_BATCH_SIZE if large else recipe.batch_size
        take.append(f"{optimizer} at most {advice_evidence.for_fine_tuning(optimizer, size):.2g}")
        is_for.append(f"{'a rate of ' if not large else ''}{rate:.3g}")
    return Advice(
        f"Fine-tune with {' and '.join(take)}: {' with '.join(is_for)} is for training from "
        "scratch.",
        f"{_looks_pretrained(evidence)}. Large updates overwrite what the weights have learned, "
        "and few examples make few large batches.",
        "Devlin et al. 2019 (batch 16 or 32, Adam 2e-5 to 5e-5); Li et al. 2020, Rethinking the "
        "hyperparameters for fine-tuning (arXiv:2002.11770; SGD, batch 256); Kolesnikov et al. "
        "2020 (arXiv:1912.11370; batch 512 for 500 updates or more)",
    )


def _looks_pretrained(evidence: Evidence) -> str:
    model = evidence.model
    if evidence.pretrained or model is None:
        return "The model is pretrained"
    if model.frozen:
        return (
            f"{model.frozen} of {model.layers} layers with weights are frozen, so the model looks "
            "pretrained"
        )
    return "Batch normalization holds statistics of an earlier training, so the model is pretrained"


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


def slow_statistics(evidence: Evidence) -> Advice | None:
    """Batch normalization is validated by statistics that are still those of the beginning."""
    model, updates = evidence.model, evidence.updates
    if model is None or not updates or model.moved or evidence.recipe.normalization != "batch":
        return None
    start = model.momentum**updates
    if start <= MOST_OF_START:
        return None
    fitting = min(max(1 - 5 / updates, 0.5), 0.9)
    return Advice(
        f"Give BatchNormalization a momentum of {fitting:.2g}, or take "
        f'normalization="group": after {updates} updates, {start:.0%} of the moving statistics '
        f"with momentum {model.momentum:.3g} are still those of the start.",
        "Training normalizes by each batch, validation by these statistics. So a model that has "
        "learned may look as if it had not, most of all with large batches, whose updates are few.",
        "the arithmetic of a moving average (the momentum to the power of the updates); Ioffe & "
        "Szegedy 2015 (arXiv:1502.03167), where validation takes population statistics",
    )


# Times the speed of training below which the pipeline's own speed is close to it; chosen by hand.
CLOSE = 1.25
# Times as fast as the mixed policy, so that noise of the clock is no difference; chosen by hand.
FASTER = 1.05
CPU = "CPU "


def input_bound(evidence: Evidence) -> Advice | None:
    """The input pipeline by itself is hardly faster than the training that it feeds."""
    for each in evidence.own_trainings:
        alone, training = each.input_examples_per_second, each.examples_per_second
        if alone is not None and training > 0 and alone < CLOSE * training:
            return Advice(
                "Speed up the input first (cache it, keep uint8, smaller pictures): the pipeline "
                f"alone gives {alone:,.0f} examples per second, and the training takes "
                f"{training:,.0f}.",
                "The device waits for its examples. Neither a larger batch nor another policy is "
                "faster while it does.",
                f"{each.name} of these results, whose pipeline was timed without training",
            )
    return None


def slow_mixed_policy(evidence: Evidence) -> Advice | None:
    """A mixed policy that trains no faster than float32 here, by pairs of trials or the device."""
    policy = evidence.recipe.policy
    if policy == "float32":
        return None
    speeds = _paired_speeds(evidence.trainings, policy)
    if speeds is None:
        return _slow_device(evidence) if policy == "mixed_float16" else None
    mixed, plain, pairs = speeds
    if plain < FASTER * mixed:
        return None
    return Advice(
        f"Train in float32: here it went through {plain:,.0f} examples per second, {policy} "
        f"through {mixed:,.0f}.",
        "Smaller numbers are faster only where the device multiplies them in hardware. Elsewhere "
        "they are converted at every layer.",
        f"{pairs} pair{'s' if pairs > 1 else ''} of trials that differ in the policy alone",
    )


def _paired_speeds(
    trainings: tuple[PastTraining, ...], policy: str
) -> tuple[float, float, int] | None:
    """Median speeds of the policy and of float32 over trials that are else alike, and how many."""
    by_policy: dict[str, dict[Hashable, list[float]]] = {policy: {}, "float32": {}}
    for each in trainings:
        if each.recipe.policy in by_policy:
            # neither rate nor warm-up changes the speed
            alike = dataclasses.replace(
                each.recipe,
                policy="float32",
                warmup_updates=0,
                learning_rate=None if each.recipe.learning_rate is None else 1.0,
            )
            speeds = by_policy[each.recipe.policy].setdefault((alike, each.own), [])
            speeds.append(each.examples_per_second)
    pairs = [key for key in by_policy[policy] if key in by_policy["float32"]]
    if not pairs:
        return None
    mixed, plain = (
        statistics.median([statistics.median(by_policy[name][key]) for key in pairs])
        for name in (policy, "float32")
    )
    return mixed, plain, len(pairs)


def _slow_device(evidence: Evidence) -> Advice | None:
    """A device without tensor cores: that of the results, or else of this machine."""
    devices = {each.device for each in evidence.trainings if each.device}
    if devices:
        device = min(devices) if all(name.startswith(CPU) for name in devices) else ""
    else:
        device = _this_slow_device()
    if not device:
        return None
    return Advice(
        f"Train in float32: {device} does not multiply float16 faster.",
        "mixed_float16 pays on a GPU with tensor cores (compute capability 7.0). On a CPU it was "
        "measured five times slower than float32.",
        f"kbatch.runtime.device, for {device}",
    )


def _this_slow_device() -> str:
    """The device of this machine in words if float16 is not fast on it, else an empty string."""
    from kbatch.runtime import device_memory

    return "" if "mixed_float16" in device.fast_policies() else device_memory.device_words()


# What a rule may need to know, in words, by the name that `Rule.needs` gives it.
KNOWN: dict[str, Callable[[Evidence], bool]] = {
    "results": lambda evidence: evidence.results is not None,
    "model": lambda evidence: evidence.model is not None,
    "largest_batch": lambda evidence: evidence.largest_batch is not None,
    "updates": lambda evidence: evidence.updates is not None,
    "model and updates": lambda evidence: None not in (evidence.model, evidence.updates),
    "data": lambda evidence: evidence.shared is not None,
    "space": lambda evidence: bool(evidence.space),
    "rate": lambda evidence: evidence.learning_rate is not None,
    "fine-tuning": lambda evidence: evidence.is_fine_tuning is not None,
    "own results": lambda evidence: bool(evidence.own_trainings),
}


@dataclass(frozen=True)
class Rule:
    """One thing that a colleague looks at in a recipe."""

    name: str  # the same in every version
    topic: str  # what it looks for, as a noun phrase
    find: Callable[[Evidence], Advice | None]  # `None` where there is nothing to say
    needs: tuple[str, ...] = ()  # names of `KNOWN`, one of which must be known to judge
    # whether the topic can arise for a recipe at all
    concerns: Callable[[Evidence], bool] = lambda evidence: True

    def advice(self, evidence: Evidence) -> Advice | None:
        """Return the advice under the rule's name; `None` where there is nothing to say."""
        found = self.find(evidence)
        return None if found is None else dataclasses.replace(found, rule=self.name)

    def is_checked(self, evidence: Evidence) -> bool:
        """Tell whether the evidence suffices to judge."""
        if not self.concerns(evidence) or not self.needs:
            return True
        return any(KNOWN[need](evidence) for need in self.needs)


# First what makes all numbers worthless, then what costs most.
RULES = (
    Rule(
        "evaluated_on_training_data",
        "whether validation examples are training examples too",
        evaluated_on_training_data,
        ("data",),
    ),
    Rule(
        "largest_not_best",
        "whether a smaller batch is better",
        _advice_batch.largest_not_best,
        ("results", "largest_batch"),
    ),
    Rule(
        "rate_not_scaled",
        "whether the learning rate suits the batch",
        _advice_batch.not_scaled,
        ("rate",),
    ),
    Rule("no_warmup", "whether a raised learning rate is warmed up", _advice_batch.no_warmup),
    Rule(
        "long_warmup",
        "whether warm-up ends in time",
        _advice_batch.long_warmup,
        ("updates",),
        lambda evidence: evidence.recipe.warmup_updates > 0,
    ),
    Rule(
        "too_few_updates",
        "whether the training has enough updates",
        _advice_batch.too_few_updates,
        ("updates",),
    ),
    Rule(
        "generalisation_gap",
        "whether larger batches lose accuracy",
        _advice_batch.generalisation_gap,
        ("results",),
    ),
    Rule(
        "needless_accumulation",
        "whether the batch fits in one pass",
        _advice_batch.needless_accumulation,
        ("results", "largest_batch"),
        lambda evidence: (
            evidence.recipe.accumulation_steps > 1
            and not measures_noise(evidence.recipe.batch_schedule)
        ),
    ),
    Rule(
        "small_micro_batch",
        "whether a pass is too small for BatchNormalization",
        _advice_batch.small_micro_batch,
        ("model",),
        lambda evidence: evidence.examples_per_pass < _advice_batch.FEWEST_EXAMPLES,
    ),
    Rule(
        "fine_tuning",
        "whether the model is fine-tuned",
        fine_tuning,
        ("fine-tuning",),
    ),
    Rule(
        "input_bound",
        "whether the input is fast enough",
        input_bound,
        ("own results",),
    ),
    Rule(
        "slow_mixed_policy",
        "whether the mixed policy is faster here",
        slow_mixed_policy,
    ),
    Rule(
        "long_average",
        "whether the moving average is shorter than the training",
        long_average,
        ("updates",),
        lambda evidence: evidence.recipe.ema is not None,
    ),
    Rule(
        "slow_statistics",
        "whether the statistics of BatchNormalization follow",
        slow_statistics,
        ("model and updates",),
        lambda evidence: evidence.model is None or evidence.model.momentum > 0,
    ),
    Rule(
        "edge_of_rates",
        "whether the learning rates of the search are wide enough",
        _advice_batch.edge_of_rates,
        ("space",),
        lambda evidence: evidence.results is not None and evidence.recipe.optimizer != COMPILED,
    ),
    Rule(
        "edge_of_batch_sizes",
        "whether the batch sizes of the search are wide enough",
        _advice_batch.edge_of_batch_sizes,
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
