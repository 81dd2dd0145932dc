"""Study: the cells of a published table, and the tables and verdicts that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kbatch.recipe import Recipe
from kbatch.studies.cell import LEAST_IMAGE_SIZE, Cell, Setting
from kbatch.studies.table import Measured, StudyTable
from kbatch.studies.verdict import Verdict

Cells: TypeAlias = Callable[[Setting, Mapping[str, int]], Sequence[Cell]]
Rungs: TypeAlias = Callable[[Setting], Mapping[str, Recipe]]
TimedCells: TypeAlias = Callable[[Setting, float], Sequence[Cell]]


def no_timed_cells(setting: Setting, seconds: float) -> Sequence[Cell]:
    """Return no cells: the study compares nothing at equal time."""
    return ()


def no_rungs(setting: Setting) -> Mapping[str, Recipe]:
    """Return no recipes: the study needs no largest batch."""
    return {}


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: String, its name on the command line.
        title: String, its heading.
        question: String, what it asks, without the numbers of a setting.
        published: `Setting` of the published table.
        quick: `Setting` of a quick study.
        cells: Function `(setting, largest)` that returns the cells whose length is known
            beforehand; `largest` has the largest micro-batch of each rung.
        tables: Function of what was measured that returns the tables.
        verdicts: Function of it that returns what became of each published claim.
        timed_cells: Function `(setting, seconds)` that returns the cells at equal time; `seconds`
            is the median training time of the others.
        rungs: Function `(setting)` that returns the recipes whose largest micro-batch is found
            first, by name.
        drawn: String, the column that is drawn over the batch size; empty for no figure.
        axis: String, title of its axis, with the unit.
        least_image_size: Integer, pixels below which its network has no room.
        takes: The numbers of its setting that a user may replace.
    """

    name: str
    title: str
    question: str
    published: Setting
    quick: Setting
    cells: Cells
    tables: Callable[[Measured], Sequence[StudyTable]]
    verdicts: Callable[[Measured], Sequence[Verdict]]
    timed_cells: TimedCells = no_timed_cells
    rungs: Rungs = no_rungs
    drawn: str = "val_accuracy"
    axis: str = "validation accuracy"
    least_image_size: int = LEAST_IMAGE_SIZE
    takes: tuple[str, ...] = ("image_size", "epochs", "seeds")
