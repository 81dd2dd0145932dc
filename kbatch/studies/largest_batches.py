"""The largest micro-batch of each rung of a study, found once and kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from rich.console import Console

from kbatch.memory._find_max_batch import find_max_batch
from kbatch.recipe import Recipe
from kbatch.studies.cell import STEPS
from kbatch.studies.networks import network
from kbatch.studies.setting import Setting
from kbatch.training.project import Project

FACT = "largest"  # the name of the batches among the project's facts


def largest_batches(
    rungs: Mapping[str, Recipe],
    model: str,
    setting: Setting,
    examples: int,
    project: Project,
    console: Console,
) -> dict[str, int]:
    """Return the largest micro-batch of each rung, from the project if it has them.

    Args:
        rungs: The recipes by name.
        model: String, name of the network.
        setting: `Setting` of the study, with its memory limit.
        examples: Integer, pictures to train on: a batch of accumulated passes is at most these.
        project: `Project` that keeps the sizes; it must be held.
        console: Console to print to.

    Raises:
        NoMemoryLimitError: On a CPU, if the setting has no limit.
    """
    known = project.facts().get(FACT)
    if known:
        return {name: int(size) for name, size in known.items()}
    size = setting.image_size
    found = {}
    for name, recipe in rungs.items():
        with console.status(f"Finding the largest batch: {name} …"):
            answer = find_max_batch(
                functools.partial(network, model, size),
                (size, size, 3),
                recipe=recipe,
                memory_limit=setting.memory_limit,
                ceiling=max(examples // STEPS, 1),
                loss="binary_crossentropy",
                metrics=["accuracy"],
            )
        found[name] = answer.batch_size
        console.print(f"{name}: {answer}", highlight=False, soft_wrap=True)
    project.agree({FACT: found})
    return found
