"""The horizon of a search that is given epochs instead of seconds."""

from __future__ import annotations

import math

from kbatch.records.project import Job, Project
from kbatch.training.trainer import Trainer

CALIBRATION_UPDATES = range(5, 41)  # of the baseline; chosen by hand


def seconds_of_epochs(
    project: Project, job: Job, examples: int, epochs: int, trainer: Trainer
) -> float:
    """Return the seconds in which the baseline sees the data `epochs` times.

    They are `epochs * ceil(n / batch) * m`, with `m` the median of the baseline's updates 5 to 40,
    input included. `m` is measured once, and then kept with the project.

    Args:
        project: The project.
        job: Training of the baseline.
        examples: Integer, training examples.
        epochs: Integer.
        trainer: `Trainer` that measures.
    """
    stored = project.facts().get("measured_horizon_seconds")
    if stored is None:
        median = trainer.update_seconds(job, CALIBRATION_UPDATES)
        stored = epochs * math.ceil(examples / job.recipe.batch_size) * median
        project.agree({"measured_horizon_seconds": stored})
    return float(stored)
