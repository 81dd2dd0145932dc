"""Probe: one batch size tried, and how it is told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from kbatch import errors
from kbatch.errors import KbatchError, MemoryLimitError, ModelError
from kbatch.memory._workload import Workload
from kbatch.runtime.oom import is_suspect_exit
from kbatch.runtime.trace import Moment
from kbatch.runtime.worker import Death

# TensorFlow 2.21.0 waits up to 10 s for memory before it fails an allocation
# (third_party/xla/xla/tsl/framework/allocator_retry.cc). Half of it, and four times the fastest
# step, tell such a wait from a slow step. Chosen by hand.
WAITED_SECONDS, WAITED_TIMES = 5.0, 4.0
SUSPECTS = ("suspect", "died", "hung")  # out of memory only if a smaller batch passes


@dataclass(frozen=True)
class Probe:
    """The result of one batch size.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        ended: `"passed"` or `"out_of_memory"`. `"suspect"` (an ambiguous error), `"died"` (the
            process ended) and `"hung"` mean out of memory only if a smaller batch passes.
        peak_bytes: Integer, peak bytes in use during the steps, or until the failure.
        seconds: Float, wall-clock seconds of the whole probe.
        step_seconds: Tuple of floats, of each step that passed; the first one traces and compiles.
        message: String, the text of the error.
        phase: `"training"`, or `"validation"` if validation failed after all steps were trained.
        first_peak_bytes: Integer, peak bytes of the first step where that one is not counted in
            `peak_bytes`, else 0. On a GPU cuDNN tries its algorithms in the first step, with
            scratch memory that no later step needs.
    """

    batch_size: int
    ended: str
    peak_bytes: int
    seconds: float
    step_seconds: tuple[float, ...] = ()
    message: str = ""
    phase: str = "training"
    first_peak_bytes: int = 0

    @property
    def passed(self) -> bool:
        """Whether all steps were trained."""
        return self.ended == "passed"


@dataclass(frozen=True)
class ModelFacts:
    """Bytes of a model before it trains.

    Attributes:
        limit_bytes: Integer, bytes that the device may use, or `None` if the device cannot tell.
        device: String, the device in words.
        weight_bytes: Integer, bytes of the model's variables.
        slot_bytes: Integer, bytes of the optimizer's variables.
        gradient_bytes: Integer, bytes of one gradient: of the trainable weights.
        contiguous_bytes: Integer, the largest free block after the variables are made, within the
            limit less its margin.
        lowest_values: Own hyperparameters that nobody chose, at their lowest values.
    """

    limit_bytes: int | None
    device: str
    weight_bytes: int
    slot_bytes: int
    gradient_bytes: int
    contiguous_bytes: int
    lowest_values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def static_bytes(self) -> int:
        """Bytes of all variables."""
        return self.weight_bytes + self.slot_bytes


@dataclass(frozen=True)
class Refusal:
    """An error of a worker, as three clauses.

    Attributes:
        kind: Name of the error's class; empty for an error of the user's own code.
        must: The first clause; empty for an error that is not kbatch's.
        received: The second clause, or the text of the error.
        do: The third clause.
    """

    kind: str
    must: str
    received: str
    do: str

    def error(self, doing: str, limit_bytes: int | None) -> KbatchError:
        """The error to raise in the parent."""
        if self.must:
            kind: type[KbatchError] = getattr(errors, self.kind)
            return kind(self.must, self.received, self.do)
        if self.kind == "MemoryLimitError":
            room = "what the device has" if limit_bytes is None else f"{limit_bytes / 1e6:,.1f} MB"
            received = f"{room}, in which they do not ({self.received.splitlines()[0]})"
            return MemoryLimitError(
                "A model and its optimizer must fit into the memory limit",
                received,
                "Raise the limit, or take a smaller model",
            )
        return ModelError(
            doing,
            self.received,
            "Train it with model.fit on a few examples first: the same error shows there",
        )


def waited(step_seconds: Sequence[float]) -> bool:
    """Whether the last step waited for memory to become free, as TensorFlow lets it for 10 s.

    Example:
    >>> waited([4.0, 0.3, 0.3]), waited([4.0, 0.3, 9.8])
    (False, True)
    """
    return len(step_seconds) > 1 and step_seconds[-1] > max(
        WAITED_SECONDS, WAITED_TIMES * min(step_seconds)
    )


OF_FAILED = (
    "the MB of a size that failed are those in use when it failed, without the tensor that found "
    "no room: they may be fewer than those of a smaller size that passed"
)
LONG_SECONDS = 10.0  # of a training that is announced: chosen by hand


@runtime_checkable
class Patience(Protocol):
    """A listener that is told before a training that may take long."""

    def expect(self, batch_size: int, steps: int, seconds: float) -> None:
        """A confirmation of `steps` steps begins, which should take about `seconds` seconds."""


def shown_lines(on_probe: Callable[[Probe], None] | None) -> Callable[[Probe], None] | None:
    """The function to call with every probe: the user's own, else one that prints a line.

    Lines are printed in a terminal and in a notebook, since finding a batch size takes a minute.
    """
    return on_probe or printing_lines(_watched())


def printing_lines(console: Any) -> Callable[[Probe], None] | None:
    """A function that prints a line for every probe; `None` without a console."""
    return None if console is None else Lines(console)


class Lines:
    """Prints a line for every probe, and one before a training that takes long."""

    def __init__(self, console: Any) -> None:
        self._console, self._explained = console, False

    def __call__(self, probe: Probe) -> None:
        """Print the line of a probe, and once what the bytes of one that failed are."""
        self._console.print(f"  {probe_line(probe)}", highlight=False, markup=False)
        if probe.peak_bytes and not probe.passed and not self._explained:
            self._explained = True
            self._console.print(f"    {OF_FAILED}", highlight=False, markup=False, soft_wrap=True)

    def expect(self, batch_size: int, steps: int, seconds: float) -> None:
        """Print what begins, if it will take long."""
        if seconds >= LONG_SECONDS:
            how = f"{steps} steps in a fresh process, about {seconds:,.0f} s …"
            text = f"  batch {batch_size:<6} is confirmed by {how}"
            self._console.print(text, highlight=False, markup=False)


def probe_line(probe: Probe) -> str:
    """A probe in words."""
    used = f"{probe.peak_bytes / 1e6:,.0f} MB" if probe.peak_bytes else ""
    steps = f"{len(probe.step_seconds)} steps"
    ended = "passed" if probe.passed else probe.ended.replace("_", " ")
    return f"batch {probe.batch_size:<6} {ended:<14} {used:>10}  {steps:>9} {probe.seconds:6.1f} s"


def _watched() -> Any:
    """The console of standard error, or `None` if nobody sees it."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal or console.is_jupyter else None


# The lines that TensorFlow prints when it is imported.
GREETING = re.compile(r"[IW]\d{4} |WARNING: All log messages before")


def death_error(death: Death, limit_bytes: int | None) -> ModelError:
    """Return the error for a process that ended."""
    said = [line for line in death.said.strip().splitlines() if not GREETING.match(line)]
    remedy = "Build and fit it in a process of your own to see why"
    if limit_bytes is not None and is_suspect_exit(death.exit_code or 0):
        remedy += f", or raise the limit of {limit_bytes / 1e6:,.0f} MB"
    return ModelError(
        "A model must be made, and train a step, without ending its process",
        f"{death}: {said[-1]}" if said else str(death),
        remedy,
    )


class Probing(Protocol):
    """What a search asks of `Prober`."""

    workload: Workload
    limit_bytes: int | None

    def facts(self) -> ModelFacts:
        """See `Prober.facts`."""

    def prepare(self) -> None:
        """See `Prober.prepare`."""

    def probe(self, batch_size: int) -> Probe:
        """See `Prober.probe`."""

    def steps(self, batch_size: int, steps: int) -> Probe:
        """See `Prober.steps`."""

    def train(self, batch_size: int, steps: int, validation_batch_size: int | None = None) -> Probe:
        """See `Prober.train`."""

    def confirm(
        self, batch_size: int, steps: int, validation_batch_size: int | None = None
    ) -> Probe:
        """See `Prober.confirm`."""

    def moments(self) -> list[Moment]:
        """See `Prober.moments`."""

    def most_elements(self) -> float:
        """See `Prober.most_elements`."""

    def compiled_bytes(self, batch_size: int) -> int:
        """See `Prober.compiled_bytes`."""


DUMP = "KBATCH_XLA_DUMP"
TOO_LARGE = 1 << 60  # bytes of a step that could not be compiled for want of memory


def xla_flags(folder: str) -> dict[str, str]:
    """Environment variables that make XLA write the buffers of train steps to a folder."""
    own = os.environ.get("XLA_FLAGS", "")
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    steps_only = "--xla_dump_hlo_module_re=.*train_step.*"
    return {
        DUMP: folder,
        "XLA_FLAGS": f"{own} {dump} {steps_only}".strip(),
    }
