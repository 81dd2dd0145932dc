"""Table: the largest batch of every combination of a space."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbatch import notebook
from kbatch.combination import Combination, combinations
from kbatch.device import holder, limit
from kbatch.errors import MemoryLimitError
from kbatch.memory import _cache
from kbatch.memory._find import check_size, pipelines, room, smaller
from kbatch.memory._probe import Probe
from kbatch.memory._probe_lines import shown
from kbatch.memory._prober import TIMEOUT_SECONDS, Prober
from kbatch.memory._workload import Subject, sample_of
from kbatch.recipe import Recipe
from kbatch.records import fingerprint
from kbatch.space import Space

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Row:
    """The largest micro-batches of one combination.

    Attributes:
        combination: `Combination` that the row is for: `policy`, `optimizer`, `jit_compile` and `recompute`.
        batch_size: Integer, the largest batch size without gradient accumulation; 0 if not even one example fits.
        accumulated_batch_size: Integer, the largest micro-batch with it: one more gradient is held. Computed.
        peak_bytes: Integer, the most bytes in use while that size was trained.
        first_failing: Integer, the smallest batch size that did not pass, or `None` if all did.
        confirmed_steps: Integer, steps that it was trained in a process that had 7 % less than the limit.
    """

    combination: Combination
    batch_size: int
    accumulated_batch_size: int
    peak_bytes: int
    first_failing: int | None
    confirmed_steps: int

    @property
    def policy(self) -> str:
        """Keras dtype policy."""
        return self.combination.policy

    @property
    def optimizer(self) -> str:
        """Name of the optimizer."""
        return self.combination.optimizer

    @property
    def jit_compile(self) -> bool:
        """Whether XLA compiles the step."""
        return self.combination.jit_compile

    @property
    def recompute(self) -> str:
        """What the backward pass makes again."""
        return self.combination.recompute

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON's own types, the parts of its combination by their own names."""
        return {**self.combination._asdict(), **{name: value for name, value in vars(self).items() if name != "combination"}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Row:
        """The row that `to_dict` gave; parts of the combination that are missing are a plain recipe's."""
        parts = {name: value for name, value in fields.items() if name in Combination._fields}
        return cls(Combination(**parts), **{name: value for name, value in fields.items() if name not in parts})

    def __str__(self) -> str:
        return f"{self.combination}: {self.batch_size}"


@dataclass(frozen=True)
class Table:
    """One row per combination; iterate over it for the rows.

    Attributes:
        rows: Tuple of `Row`.
        limit_bytes: Integer, what the device may use.
        augmentation: Name of the space's pipeline with the most layers, under which all was measured.
        executed_probes: Integer, batch sizes that were trained, confirmations among them.
        compilations: Integer, steps that XLA compiled without running them.
        seconds: Float, wall-clock seconds that it took.
    """

    rows: tuple[Row, ...]
    limit_bytes: int
    augmentation: str
    executed_probes: int
    compilations: int
    seconds: float

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, combination: Combination) -> Row | None:
        """The row of a combination, or `None` if the table has none."""
        return next((row for row in self.rows if row.combination == combination), None)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows as pandas has them."""
        import pandas

        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """The table in JSON's own types."""
        return {**dataclasses.asdict(self), "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Table:
        """The table that `to_dict` gave, also after a trip through JSON."""
        return cls(**{**fields, "rows": tuple(map(Row.from_dict, fields["rows"]))})

    @classmethod
    def of_project(cls, directory: str | os.PathLike[str]) -> Table | None:
        """The table that the project of a search was begun with, or `None`.

        Args:
            directory: Folder of the KerasTuner project.
        """
        fields = (fingerprint.load(Path(directory) / fingerprint.FOLDER) or {}).get("table")
        return None if fields is None else cls.from_dict(fields)

    def _repr_html_(self) -> str:
        head = ["recipe", "largest batch", "accumulating", "peak MB"]
        rows = [
            [row.combination, row.batch_size or "none fits", row.accumulated_batch_size or "none fits", f"{row.peak_bytes / 1e6:,.0f}"]
            for row in self
        ]
        return notebook.table(head, rows, [str(self).splitlines()[-1]])

    def __str__(self) -> str:
        lines = [f"{'policy':<16}{'optimizer':<11}{'jit':<5}{'recompute':<12}{'largest batch':>14}{'accumulating':>14}{'peak MB':>10}"]
        for row in self.rows:
            jit = "yes" if row.jit_compile else "no"
            sizes = f"{row.batch_size or 'none fits':>14}{row.accumulated_batch_size or 'none fits':>14}"
            lines.append(f"{row.policy:<16}{row.optimizer:<11}{jit:<5}{row.recompute:<12}{sizes}{row.peak_bytes / 1e6:>10,.0f}")
        return "\n".join([*lines, f"limit {self.limit_bytes / 1e6:,.0f} MB; {self.executed_probes} batch sizes trained, {self.seconds:.0f} s"])


def max_batches(
    build: Callable[..., Any],
    x: Any = None,
    y: Any = None,
    space: Space | None = None,
    memory_limit: int | float | str | None = None,
    ceiling: int | None = None,
    *,
    loss: Any = None,
    metrics: Any = None,
    seed: int = 0,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_probe: Callable[[Probe], None] | None = None,
    on_row: Callable[[Row], None] | None = None,
    declare: Callable[[Any], None] | None = None,
    values: Mapping[str, Any] | None = None,
    project: str | os.PathLike[str] | None = None,
) -> Table:
    """The largest batch of every (policy, optimizer, jit, recompute) of a space, from far fewer probes than a search for each.

    Use it before a search, before TensorFlow touches the GPU, and pass it on: `HyperModel(build, max_batch=table)` then
    never trains a recipe that cannot fit. Per policy one combination is probed; what the others need beside it is
    computed from their traces, and each answer confirmed with 7 % less memory. With `jit_compile` XLA tells the need
    exactly and only the answer is trained. The table is kept on disk as `find_max_batch` keeps its answers.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        space: `Space` whose policies, optimizers, `jit_compile` and `recompute` are combined. Defaults to `Space()`.
        memory_limit: See `kbatch.find_max_batch`.
        ceiling: Integer, the largest batch size to try. Optional.
        loss: Loss, if `build` does not compile.
        metrics: Metrics, if `build` does not compile.
        seed: Integer, seed of the weights. Defaults to `0`.
        timeout_seconds: Float, after which a probe is taken to hang. Defaults to `600`.
        on_probe: Function called with every `Probe`. Defaults to a line each where people see it.
        on_row: Function called with every `Row`. Optional.
        declare: Function that declares the hyperparameters of `build`, if it does not itself. Optional.
        values: Values of the hyperparameters that `build(hp)` declares; the others take their defaults. The table holds
            for these alone: if a search varies the size of the model too, pass the largest.
        project: Folder of a search's KerasTuner project. If it was begun with a table, that one is returned and nothing
            is measured, whatever else is passed: a resumed search must keep its sizes. Optional.

    Returns:
        The `Table`; its `str()` is one for people, `.frame` is a pandas `DataFrame`.

    Raises:
        MemoryLimitError: If nothing fits at all, there is no limit, or TensorFlow holds the GPU already.
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    table = kbatch.max_batches(build, x, y, space, memory_limit="8GB", project="runs/pets")
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=60, max_batch=table)
    ```
    """
    from kbatch.memory._table_search import Tabulating

    stored = None if project is None else Table.of_project(project)
    if stored is not None:
        return stored
    space = space or Space()
    sample, examples = sample_of(x, y)
    subject = Subject(
        build, sample, Recipe(), loss, metrics, seed, space.reserved, declare, dict(values or {}), pipelines=pipelines(space.augmentation)
    )
    wanted = combinations(space)
    limit_bytes = limit.checked(memory_limit)
    most = smaller(check_size("ceiling", ceiling), examples)
    facts = {"what": "table", "of": wanted, "under": space.augmentation, **room(limit_bytes), "ceiling": most, "shapes": subject.shapes}
    with Prober(subject.of(_plain(wanted[0], space.augmentation[0])), limit_bytes, timeout_seconds, None, holder.environment()) as prober:
        augmentation = space.augmentation[0] if len(space.augmentation) == 1 else prober.heaviest(space.augmentation)
        name = _cache.key({**facts, "models": _models(prober, wanted, augmentation)})
    known = _cache.load(name)
    if known is not None:
        return Table.from_dict(known)
    holder.check_free()
    table = Tabulating(subject, augmentation, limit_bytes, most, timeout_seconds, shown(on_probe), on_row).table(wanted)
    _cache.save(name, table.to_dict())
    return table


def _models(prober: Prober, combinations: Sequence[Combination], augmentation: str) -> dict[str, str]:
    """What tells the user's model from others, by policy: optimizer, jit and recompute come to it from outside, the policy it can see."""
    models: dict[str, str] = {}
    own_optimizer_first = sorted(combinations, key=lambda each: each.optimizer != "compiled")
    for combination in own_optimizer_first:
        if combination.policy not in models:
            recipe = _plain(combination, augmentation)
            if recipe != prober.subject.recipe:
                prober.another(prober.subject.of(recipe))
            try:
                models[combination.policy] = prober.digest()
            except MemoryLimitError:
                models[combination.policy] = "does not fit"
    return models


def _plain(combination: Combination, augmentation: str) -> Recipe:
    """The recipe of a combination without what leaves the model as it is."""
    return recipe_of(combination._replace(jit_compile=False, recompute="none"), augmentation)


def recipe_of(combination: Combination, augmentation: str) -> Recipe:
    """The recipe to measure a combination with."""
    rate: Any = None if combination.optimizer == "compiled" else 1e-3
    return Recipe(**combination._asdict(), learning_rate=rate, augmentation=augmentation)
