"""Prober: tries one batch size after another in a disposable worker, and tells how they end."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kbatch import errors
from kbatch.errors import KbatchError, MemoryLimitError, ModelError
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Probe
from kbatch.memory._workload import Workload
from kbatch.model_spec import text_of_values
from kbatch.runtime import device_memory, nvidia, users_code
from kbatch.runtime.oom import is_suspect_exit
from kbatch.runtime.trace import Moment
from kbatch.runtime.worker import Death, Worker

# TensorFlow 2.21.0 waits up to 10 s for memory before it fails an allocation
# (third_party/xla/xla/tsl/framework/allocator_retry.cc). Half of it, and four times the fastest
# step, tell such a wait from a slow step. Chosen by hand.
WAITED_SECONDS, WAITED_TIMES = 5.0, 4.0
SUSPECTS = ("suspect", "died", "hung")  # out of memory only if a smaller batch passes


@dataclass(frozen=True)
class ModelFacts:
    """Bytes of a model before it trains."""

    limit_bytes: int | None  # bytes that the device may use, or `None` if the device cannot tell
    device: str  # the device in words
    weight_bytes: int  # bytes of the model's variables
    slot_bytes: int  # bytes of the optimizer's variables
    gradient_bytes: int  # bytes of one gradient: of the trainable weights
    # The largest free block after the variables are made, within the limit less its margin.
    contiguous_bytes: int
    # Own hyperparameters that nobody chose, at their lowest values.
    lowest_values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def static_bytes(self) -> int:
        """Bytes of all variables."""
        return self.weight_bytes + self.slot_bytes


@dataclass(frozen=True)
class Refusal:
    """An error of a worker, as three clauses."""

    kind: str  # name of the error's class; empty for an error of the user's own code
    must: str  # the first clause; empty for an error that is not kbatch's
    received: str  # the second clause, or the text of the error
    do: str  # the third clause

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


# Steps that take long may be fewer: a probe's from its second step on, and a confirmation's where
# its steps are so alike that no later one is likely to run out. Chosen by hand.
SLOW_STEP_SECONDS, SLOW_CONFIRMATION_SECONDS = 2.0, 20.0
FEWEST_STEPS, DEVIATIONS = 6, 4.0
FEWEST_COUNTED_STEPS = 4  # without convolutions and loops, whose needs vary most

# From the seconds and the peak bytes of the steps so far, and the bytes of the process.
IsDone: TypeAlias = Callable[[Sequence[float], Sequence[int], int], bool]


def slow_probe_is_done(seconds: Sequence[float], peaks: Sequence[int], limit_bytes: int) -> bool:
    """Whether a probe has seen a step after the first, and steps are slow."""
    return len(seconds) > 1 and seconds[-1] > SLOW_STEP_SECONDS


def confirmation_is_done(seconds: Sequence[float], peaks: Sequence[int], limit_bytes: int) -> bool:
    """Whether a slow confirmation has seen enough steps to tell that later ones find room too.

    Example:
    >>> alike, apart = [900, 910, 912, 908, 911, 909], [900, 910, 950, 908, 890, 909]
    >>> [confirmation_is_done([9.0] * 6, peaks, 1000) for peaks in (alike, apart)]
    [True, False]
    """
    return len(seconds) >= FEWEST_STEPS and _are_alike(seconds, peaks, limit_bytes)


def counted_confirmation_is_done(
    seconds: Sequence[float], peaks: Sequence[int], limit_bytes: int
) -> bool:
    """The same of a step without convolutions and loops."""
    return len(seconds) >= FEWEST_COUNTED_STEPS and _are_alike(seconds, peaks, limit_bytes)


def _are_alike(seconds: Sequence[float], peaks: Sequence[int], limit_bytes: int) -> bool:
    """Whether slow steps need so much alike that no later one is likely to run out."""
    if sum(seconds) < SLOW_CONFIRMATION_SECONDS:
        return False
    steady = peaks[1:]
    highest = statistics.fmean(steady) + DEVIATIONS * statistics.stdev(steady)
    return highest <= MARGINS.computed * limit_bytes


def all_are_wanted(seconds: Sequence[float], peaks: Sequence[int], limit_bytes: int) -> bool:
    """`False`: whoever asks for more steps than the default gets all of them."""
    return False


OF_FAILED = (
    "the MB of a size that failed are those in use when it failed, without the tensor that found "
    "no room: they may be fewer than those of a smaller size that passed"
)
LONG_SECONDS = 10.0  # of a training that is announced: chosen by hand


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

    def try_first(self, batch_size: int, steps: int) -> None:
        """Print the size that is tried before any other, as it is predicted to fit."""
        text = f"  batch {batch_size:<6} is predicted to fit: up to {steps} steps …"
        self._console.print(text, highlight=False, markup=False)

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


STEPS = 3  # of a probe: the first traces, the second is steady, the third may be higher
TIMEOUT_SECONDS = 600.0
# A confirmation may take this many times its expected seconds, and this many more. One that takes
# longer only waits for memory. Chosen by hand.
SLOWER, PATIENCE_SECONDS = 4, 30.0
# Functions of these modules are called by name, since the modules import TensorFlow.
WORKER = "kbatch.memory._worker"
DOING = "A model must be made and train a step on these data"


class Prober:
    """Tries batch sizes in a process of its own."""

    def __init__(
        self,
        workload: Workload,
        limit_bytes: int | None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_probe: Callable[[Probe], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.workload, self.limit_bytes, self.timeout_seconds = (
            workload,
            limit_bytes,
            timeout_seconds,
        )
        self._whole = (
            None if limit_bytes is None else limit_bytes // device_memory.MIB * device_memory.MIB
        )
        self._environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_FORCE_GPU_ALLOW_GROWTH": "false",
            "TF_GPU_ALLOCATOR": "",  # CUDA's own allocator takes a limit as a threshold only
            **(environment or {}),
        }
        self._on_probe = on_probe
        self._dump = tempfile.TemporaryDirectory(prefix="kbatch-xla-", ignore_cleanup_errors=True)
        self._worker = self._within(limit_bytes)
        self._limit_bytes = limit_bytes  # of the worker
        self._prepared: Worker | None = None
        self._facts: ModelFacts | None = None
        self._begin_seconds = self._first_seconds = self._slowest_seconds = 0.0
        self._later_seconds: list[float] = []  # of steps after the first
        self._compiled = 0  # bytes of a size that could be compiled
        self._passed_alone: set[str] = set()  # methods that passed with one example

    def facts(self) -> ModelFacts:
        """Bytes of the model, which is made first; made anew in a new worker."""
        if self._facts is None or not self._worker.alive:
            began = time.perf_counter()
            try:
                answer = self._worker.call(
                    f"{WORKER}:begin",
                    self.workload,
                    self._limit_bytes,
                    timeout_seconds=self.timeout_seconds,
                )
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise ModelError(
                    "`build` must be able to travel to another process",
                    str(error),
                    "Move what it holds into the function",
                ) from error
            facts: ModelFacts = self._answer(answer)
            self._begin_seconds = max(self._begin_seconds, time.perf_counter() - began)
            _tell_of_lowest(facts.lowest_values)
            if "CUDA_VISIBLE_DEVICES" not in self._environment:  # it may hide the card itself
                nvidia.tell_of_unused_card(facts.device)
            self._facts = (
                facts
                if self._whole is None
                else dataclasses.replace(facts, limit_bytes=self._whole)
            )
            self._whole = self._facts.limit_bytes
        return self._facts

    def prepare(self) -> None:
        """Start the process that `confirm` will need now: importing TensorFlow takes seconds."""
        if self._prepared is None:
            self._prepared = self._within(self._spared)
            self._prepared.prepare(f"{WORKER}:prepare")

    def another(self, workload: Workload) -> None:
        """Go on with another workload, in the same process while it lives."""
        self.workload, self._facts = workload, None
        self._compiled, self._passed_alone = 0, set()

    def probe(self, batch_size: int) -> Probe:
        """Train three steps."""
        return self._try("probe", (batch_size, STEPS), self.timeout_seconds)

    def steps(self, batch_size: int, steps: int) -> Probe:
        """Train `steps` steps."""
        return self._try("probe", (batch_size, steps), self.timeout_seconds)

    def confirm_at_once(
        self, batch_size: int, steps: int, validation_batch_size: int | None = None
    ) -> Probe:
        """Train as `confirm` does, in this process: no large size may have been tried in it before.

        A process in which the size fails is ended, since its allocator's regions are cut by then.
        """
        self.facts()
        if isinstance(self._on_probe, Lines):
            self._on_probe.try_first(batch_size, steps)
        spared_bytes = (self._whole or 0) - self._spared
        arguments = (batch_size, steps, validation_batch_size or batch_size, spared_bytes)
        probe = self._try("confirm_spared", arguments, self.timeout_seconds)
        if not probe.passed:
            self._worker.close()
        return probe

    def train(self, batch_size: int, steps: int, validation_batch_size: int | None = None) -> Probe:
        """Train `steps` steps as `fit` does, and validate."""
        timeout = self.timeout_seconds
        if self._first_seconds:
            slow = self._first_seconds + self._slowest_seconds * steps
            timeout = PATIENCE_SECONDS + SLOWER * slow
            if isinstance(self._on_probe, Lines):
                self._on_probe.expect(batch_size, steps, self._expected(steps))
        self.facts()
        return self._try(
            "confirm", (batch_size, steps, validation_batch_size or batch_size), timeout
        )

    def _expected(self, steps: int) -> float:
        """Seconds of a training in a process, which makes the model first if it is a fresh one."""
        begin = 0.0 if self._facts is not None and self._worker.alive else self._begin_seconds
        usual = statistics.median(self._later_seconds or [self._slowest_seconds])
        return begin + self._first_seconds + usual * steps

    def confirm(
        self, batch_size: int, steps: int, validation_batch_size: int | None = None
    ) -> Probe:
        """Train as `train` does, in a fresh process that has a little less memory than the limit.

        A size that passes there has the difference to spare. The process is fresh because a size
        tried before leaves the allocator's regions cut to its own measure: another size may pass
        among them and fail alone.
        """
        spared = self._spared
        self._worker.close()
        self._worker, self._limit_bytes = self._prepared or self._within(spared), spared
        self._prepared = self._facts = None
        return self.train(batch_size, steps, validation_batch_size)

    def moments(self) -> list[Moment]:
        """See `ProbeSession.moments`."""
        return self._ask("moments")

    def misses_some(self) -> bool:
        """See `ProbeSession.misses_some`."""
        return self._ask("misses_some")

    def most_elements(self) -> float:
        """See `ProbeSession.most_elements`."""
        return self._ask("most_elements")

    def digest(self) -> str:
        """See `ProbeSession.digest`."""
        return self._ask("digest")

    def compiled_bytes(self, batch_size: int) -> int:
        """See `ProbeSession.compiled_bytes`.

        A size that cannot be compiled is too large if one example can.
        """
        self.facts()
        answer = self._call("compiled_bytes", batch_size)
        if batch_size > 1 and self._may_be_too_large(answer):
            self._worker.close()
            self._compiled = self._compiled or self.compiled_bytes(1)
            return TOO_LARGE
        self._compiled = self._answer(answer)
        return self._compiled

    def is_compiled_by_xla(self) -> bool:
        """Whether Keras compiles the model by XLA if nothing is said."""
        return self._ask("is_compiled_by_xla")

    def heaviest(self, augmentations: tuple[str, ...]) -> str:
        """The augmentation pipeline with the most layers."""
        return self._ask("heaviest", augmentations)

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        if self._prepared is not None:
            self._prepared.close()
        self._dump.cleanup()

    @property
    def _spared(self) -> int:
        """The limit less what an answer leaves free."""
        whole = self._whole if self._whole is not None else self.facts().limit_bytes
        if whole is None:
            raise device_memory.no_limit()
        return MARGINS.usable(whole)

    def _within(self, limit_bytes: int | None) -> Worker:
        """A new process that keeps to a limit."""
        flags = xla_flags(self._dump.name) if self.workload.recipe.jit_compile else {}
        return Worker(
            {**self._environment, **device_memory.limit_environment(limit_bytes), **flags}
        )

    def _call(self, method: str, *arguments: Any, timeout_seconds: float = 0.0) -> Any:
        """What a method of the worker's session answers: a result, a `Refusal` or a `Death`."""
        timeout = timeout_seconds or self.timeout_seconds
        return self._worker.call(f"{WORKER}:answer", method, *arguments, timeout_seconds=timeout)

    def _try(self, method: str, arguments: tuple[int, ...], timeout_seconds: float) -> Probe:
        self.facts()
        began = time.perf_counter()
        answer = self._call(method, *arguments, timeout_seconds=timeout_seconds)
        if isinstance(answer, Death):
            if answer.exit_code is not None and not is_suspect_exit(answer.exit_code):
                self._answer(answer)
            ended = "hung" if answer.exit_code is None else "died"
            probe = Probe(arguments[0], ended, 0, time.perf_counter() - began, message=str(answer))
        elif self._may_be_too_large(answer) and self._passes_alone(method, arguments):
            # an error that is gone the second time was not of the size
            again = self._call(method, *arguments, timeout_seconds=timeout_seconds)
            failed = Probe(arguments[0], "suspect", 0, 0.0, message=answer.received)
            probe = again if isinstance(again, Probe) else failed
            probe = dataclasses.replace(probe, seconds=time.perf_counter() - began)
        else:
            probe = dataclasses.replace(self._answer(answer), seconds=time.perf_counter() - began)
        self._first_seconds = max(self._first_seconds, *probe.step_seconds[:1], 0.0)
        self._slowest_seconds = max(self._slowest_seconds, *probe.step_seconds[1:], 0.0)
        self._later_seconds += probe.step_seconds[1:]
        if probe.ended == "suspect" or (not probe.passed and self.workload.recipe.jit_compile):
            self._worker.close()  # XLA has freed variables that the next step would read
        if self._on_probe is not None:
            self._on_probe(probe)
        return probe

    def _ask(self, method: str, *arguments: Any) -> Any:
        """The answer to a question about the model."""
        self.facts()
        return self._answer(self._call(method, *arguments))

    def _may_be_too_large(self, answer: Any) -> bool:
        """Whether an answer is an error of the model's or of TensorFlow's own, or a death.

        Kernels refuse more than 2**31 elements, and cuDNN some large shapes, with errors of many
        kinds.
        """
        if isinstance(answer, Death):
            return answer.exit_code is None or is_suspect_exit(answer.exit_code)
        return isinstance(answer, Refusal) and not answer.kind

    def _passes_alone(self, method: str, arguments: tuple[int, ...]) -> bool:
        """Whether one example passes in a new process, so that an error is due to the size."""
        if arguments[0] == 1:
            return False
        if method not in self._passed_alone:
            self._worker.close()
            self.facts()
            answer = self._call(method, *(1 for _ in arguments))
            if not isinstance(answer, Probe) or not answer.passed:
                return False
            self._passed_alone.add(method)
        return True

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, Refusal):
            self._worker.close()
            raise answer.error(DOING, self.limit_bytes or self._whole)
        if isinstance(answer, Death):
            raise death_error(answer, self.limit_bytes or self._whole)
        return answer

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _tell_of_lowest(values: Mapping[str, Any]) -> None:
    """Warn that the model is measured with values that nobody chose: larger ones need more."""
    if values:
        users_code.warn(
            f"The model is measured with your hyperparameters at their lowest values: "
            f"{text_of_values(values)}; give values= of the largest that will train."
        )
