"""Loading: the records of a project as a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kbatch.axes import AXES
from kbatch.errors import RecordError, in_one_frame
from kbatch.outcome import SCORED, Goal, Outcome
from kbatch.recipe import Recipe
from kbatch.recipe_words import CONSTANT
from kbatch.records import project
from kbatch.records.store import FRESH, RECORDS_FILE, Record, read
from kbatch.results.claim import Race
from kbatch.results.words import own_values, whose

LAST = "ended"  # the columns up to this one are shown, and the user's own hyperparameters
OWN = "hp_"


class Trials(pd.DataFrame):
    """A `pandas.DataFrame` of trainings, one row each.

    `print` and a notebook show the first columns (trial, recipe, score, value, seconds, ending) and
    the user's own hyperparameters. All other columns are there too. A selection of columns is shown
    as it was selected.
    """

    @property
    def _constructor(self) -> Callable[..., Trials]:
        return Trials

    def __repr__(self) -> str:
        with _wide():
            return repr(self._shown()) + self._note()

    def _repr_html_(self) -> str:
        with _wide():
            return (
                self._shown().to_html(notebook=True, max_rows=pd.get_option("display.max_rows"))
                + f"<p>{self._note().strip()}</p>"
            )

    def _shown(self) -> pd.DataFrame:
        """The columns to show, as a plain table."""
        plain = pd.DataFrame(self)
        if not self._shortened():
            return plain
        own = [name for name in self.columns if str(name).startswith(OWN)]
        return plain[[*self._first(), *own]]

    def _first(self) -> list[str]:
        names = list(self.columns)
        return names[: names.index(LAST) + 1]

    def _shortened(self) -> bool:
        """Whether this is the whole table, and not a selection or a summary of it."""
        names = list(self.columns)
        return (
            names[:3] == ["trial", "recipe", "score"]
            and LAST in names
            and len(names) > names.index(LAST) + 1
        )

    def _note(self) -> str:
        if not self._shortened():
            return ""
        columns = f"{len(self.columns)} columns in all (see .columns)"
        return f"\n{columns}; trial -1 is the baseline, score is per second"


def _wide() -> pd.option_context:
    return pd.option_context(
        "display.width", 200, "display.max_columns", None, "display.max_colwidth", 80
    )


_PLAIN_COLUMNS = [
    axis.name for axis in AXES if axis.in_recipe and axis.name not in ("batch_size", "optimizer")
]


def root_of(source: Any) -> Path:
    """Return the folder of a tuner, or of a path."""
    path = getattr(source, "project_dir", source)
    if not isinstance(path, (str, os.PathLike)):
        raise RecordError(
            "A search must be given as its tuner or its folder",
            type(source).__name__,
            'Pass the tuner, or "runs/pets"',
        )
    return Path(path)


def folder_of(source: Any) -> Path:
    """Return the folder of the records: the given one, or the only one below it that holds some."""
    root = root_of(source)
    found = [
        path.parent
        for path in (root / RECORDS_FILE, root / project.FOLDER / RECORDS_FILE)
        if path.is_file()
    ]
    found = found or sorted(path.parent for path in root.glob(f"*/{project.FOLDER}/{RECORDS_FILE}"))
    if len(found) != 1:
        nothing = "no records in it" if root.is_dir() else "no such folder"
        if root.is_file():
            nothing = "a file"
        received = ", ".join(map(str, found)) or nothing
        raise RecordError(
            f"{root} must hold the records of one search",
            received,
            "Pass the folder of one search (directory/project_name)",
        )
    _check_search(found[0])
    return found[0]


def _check_search(folder: Path) -> None:
    """Refuse the folder of a study, whose records have no baseline and no goal."""
    study = (project.load_facts(folder) or {}).get("study")
    if study is not None:
        raise RecordError(
            f"{folder} must hold the records of a search",
            f"this is the folder of the study {study!r}",
            f"Read {folder.parent / 'study.md'}",
        )


def load_records(source: Any) -> list[Record]:
    """Return all records of a project, in the order they were made."""
    return [line.record for line in read(folder_of(source) / RECORDS_FILE) if line.record]


def load_goal(source: Any) -> Goal:
    """Return the goal of a project."""
    facts = project.load_facts(folder_of(source)) or {}
    if "goal" not in facts:
        raise RecordError(
            "A project must have a goal",
            f"none in {folder_of(source)}",
            "Let the search begin its baseline first",
        )
    return Goal.from_dict(facts["goal"])


def load_validation_examples(source: Any) -> int:
    """Return how many validation examples the metric was measured on; 0 if unknown."""
    facts = project.load_facts(folder_of(source)) or {}
    return int(facts.get("data", {}).get("validation", {}).get("examples") or 0)


def load_tuner(source: Any) -> str:
    """Return whose search a project is: `OWN` for kbatch's, empty for any other."""
    return str((project.load_facts(folder_of(source)) or {}).get(project.TUNER) or "")


def load_race(source: Any) -> Race:
    """Return how the confirmations of a project gave their seeds."""
    return Race.of(project.load_facts(folder_of(source)) or {})


def load_checks(source: Any) -> dict[str, dict[str, Any]]:
    """Return what the checks of a project found, by the name of the check."""
    checks = (project.load_facts(folder_of(source)) or {}).get("checks")
    found = checks if isinstance(checks, dict) else {}
    return {str(name): each for name, each in found.items() if isinstance(each, dict)}


def load_own_optimizer(source: Any) -> str:
    """Return the name of the optimizer of the user's model; empty if unknown or there is none."""
    facts = project.load_facts(folder_of(source)) or {}
    return str(facts.get("signature", {}).get("optimizer") or "").split(" ")[0]


@in_one_frame
def load(directory: Any) -> Trials:
    """Load the trials of a search and its baseline, one row each.

    Args:
        directory: The tuner of the search, or its folder (`directory/project_name` of the tuner).

    Returns:
        A `pandas.DataFrame` with at least the columns `trial` (-1 for the baseline), `recipe`,
        `score` (per second), the metric (such as `val_accuracy`), `train_seconds`, `ended`,
        `stopped_by`, `baseline`, `batch_size`, `micro_batch_size`, `optimizer`, `learning_rate`,
        `final_learning_rate`, `learning_rate_at_32`, `policy`, `augmentation`,
        `first_step_seconds`, `validation_seconds`, `examples`, `examples_per_second`,
        `peak_bytes`, `noise_scale` (in examples), `validation_examples`; and `hp_…` for the user's
        own hyperparameters. `print` shows the first columns. `kbatch.Recipe.from_dict(row)` gives
        the recipe of a row.

    Raises:
        RecordError: If there are no records, or they cannot be read.

    Example:
    ```python
    trials = kbatch.results.load("runs/pets")
    print(trials.sort_values("score", ascending=False))
    ```
    """
    return _of_project(
        directory,
        [record for record in load_records(directory) if record.purpose not in FRESH],
    )


@in_one_frame
def load_confirmations(directory: Any) -> Trials:
    """Load the trainings of `kbatch.confirm`, one row each.

    Args:
        directory: The tuner of the search, or its folder.

    Returns:
        A `pandas.DataFrame` with the columns of `load`, and `test_…` for each metric if the
        confirmation had test data. `seed` tells the trainings of a recipe apart.

    Raises:
        RecordError: If there are no records, or they cannot be read.

    Example:
    ```python
    runs = kbatch.results.load_confirmations("runs/pets")
    print(runs.groupby("recipe")["score"].mean())
    ```
    """
    return _of_project(
        directory,
        [record for record in load_records(directory) if record.purpose == "confirmation"],
    )


def _of_project(directory: Any, records: Iterable[Record]) -> Trials:
    """The rows of a project's records, with the number of examples that values are measured on."""
    table = rows(records, load_goal(directory).metric)
    table["validation_examples"] = load_validation_examples(directory)
    return table


def rows(records: Iterable[Record], metric: str = "val_accuracy") -> Trials:
    """Return one row per record; without records, all columns and no row."""
    columns = list(_row(Record("", "search", 0, 0, Recipe(), Outcome("crashed"), 0.0), metric))
    found = [_row(record, metric) for record in records]
    return Trials(found) if found else Trials(columns=columns)


def _row(record: Record, metric: str) -> dict[str, Any]:
    recipe, outcome = record.recipe, record.outcome
    seconds = {
        f"{part}_seconds": outcome.seconds.get(part)
        for part in ("build", "first_step", "validation", "checkpoint", "total")
    }
    return {
        "trial": record.trial,
        "recipe": str(recipe),
        "score": record.score,
        metric: outcome.value,
        "train_seconds": outcome.train_seconds,
        "ended": outcome.ended,
        "stopped_by": outcome.stopped_by,
        "baseline": record.baseline,
        "batch_size": recipe.batch_size,
        "micro_batch_size": recipe.examples_per_pass,
        "optimizer": recipe.optimizer,
        "learning_rate": outcome.learning_rate
        if recipe.learning_rate is None
        else recipe.learning_rate,
        "final_learning_rate": outcome.final_learning_rate,
        "learning_rate_at_32": record.learning_rate_at_32,
        "warmup_updates": recipe.warmup_updates,
        **{name: getattr(recipe, name) for name in _PLAIN_COLUMNS},
        "median_update_seconds": outcome.median_update_seconds,
        **seconds,
        "updates": outcome.updates,
        "skipped_updates": outcome.skipped_updates,
        "examples": outcome.examples,
        "examples_per_second": outcome.examples_per_second,
        "input_examples_per_second": outcome.input_examples_per_second,
        "peak_bytes": outcome.peak_bytes,
        "recompute_seconds": outcome.recompute_seconds,
        "noise_scale": outcome.noise_scale,
        "seed": record.seed,
        "remarks": "; ".join(outcome.remarks) or outcome.message,
        "device": record.device,
        **{f"{OWN}{name}": value for name, value in own_values(record).items()},
        **{f"test_{name}": value for name, value in record.test.items()},
    }


# Times that the fastest training of a recipe is the slowest. Of the 61 recipes of replay_resnet40,
# confirmed twice for 8 s on one core with work on the other, half differed by less than 1.05 and
# all by less than 1.37 (by hand, from the project, which is not kept).
UNEVEN = 1.5
LEAST_SECONDS = 1.0  # of training: the speed of a shorter one is chance; chosen by hand


def uneven_speeds(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each recipe whose fresh seeds trained at very different speeds.

    The trainings of a confirmation are compared, on each device by itself. A batch that grows is
    left out, since its speed depends on how long it trained.
    """
    groups: dict[tuple[int, str], list[float]] = {}
    for record in records:
        if record.purpose == "confirmation" and _is_comparable(record):
            key = (record.first_trial, record.device)
            groups.setdefault(key, []).append(record.outcome.examples_per_second)
    return [
        f"{whose(trial)}'s fresh seeds trained on {min(speeds):,.0f} to {max(speeds):,.0f} "
        "examples per second: the machine had other work, or several workers, and the scores "
        "differ by that"
        for (trial, _), speeds in sorted(groups.items())
        if max(speeds) >= UNEVEN * min(speeds)
    ]


def _is_comparable(record: Record) -> bool:
    """Whether a training tells the speed of its recipe."""
    outcome = record.outcome
    ended = outcome.ended in SCORED and outcome.train_seconds >= LEAST_SECONDS
    return ended and record.recipe.batch_schedule == CONSTANT
