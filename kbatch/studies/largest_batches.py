"""The largest micro-batch of each rung of a study, found once and kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from rich.console import Console

from kbatch.memory._find import find_max_batch
from kbatch.recipe import Recipe
from kbatch.records.project import Project
from kbatch.studies.cell import STEPS
from kbatch.studies.networks import network
from kbatch.studies.setting import Setting

FACT = "largest"  # the name of the batches among the project's facts


def largest_batches(
    rungs: Mapping[str, Recipe],
    model: str,
    setting: Setting,
    examples: int,
    project: Project,
    console: Console,
) -> dict[str, int]:
    """Return the largest micro-batch of each rung; the project keeps each once it is found.

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
    size, found = setting.image_size, _known(project)
    for name, recipe in rungs.items():
        if name in found:
            continue
        with console.status(f"Finding the largest batch: {name} …"):
            answer = find_max_batch(
                functools.partial(network, model, size),
                (size, size, 3),
                recipe=recipe,
                memory_limit=setting.memory_limit,
                ceiling=ceiling_of(examples),
                loss="binary_crossentropy",
                metrics=["accuracy"],
            )
        found[name] = answer.batch_size
        project.agree({f"{FACT} {name}": answer.batch_size})  # each, so that Ctrl-C loses none
        console.print(f"{name}: {answer}", highlight=False, soft_wrap=True)
    return found


def ceiling_of(examples: int) -> int:
    """Return the most pictures of one pass, so that all accumulated passes have enough.

    Args:
        examples: Integer, pictures to train on.
    """
    return max(examples // STEPS, 1)


def _known(project: Project) -> dict[str, int]:
    """The sizes found before; an older version kept all of them in one fact."""
    facts = project.facts()
    known = {name: int(size) for name, size in facts.get(FACT, {}).items()}
    for name, size in facts.items():
        if name.startswith(f"{FACT} "):
            known[name.removeprefix(f"{FACT} ")] = int(size)
    return known
