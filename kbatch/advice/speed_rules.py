"""Rules on speed: the input pipeline, and a policy that is slower here."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Hashable

from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence
from kbatch.advice.past_results import PastTraining
from kbatch.runtime import precision

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

    return "" if "mixed_float16" in precision.fast_policies() else device_memory.device_words()
