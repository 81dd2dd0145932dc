"""Prober: the parent's side of a disposable worker that tries one batch size after another."""

from __future__ import annotations

import dataclasses
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kbatch.errors import ModelError
from kbatch.memory import _probe
from kbatch.memory._max_batch import MARGINS
from kbatch.memory._probe import ModelFacts, Patience, Probe, Refusal, death_error
from kbatch.memory._workload import Workload
from kbatch.model_spec import text_of_values
from kbatch.runtime import device_memory, nvidia, users_code
from kbatch.runtime.oom import is_suspect_exit
from kbatch.runtime.trace import Moment
from kbatch.runtime.worker import Death, Worker

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
        self._on_probe = on_probe or _ignore
        self._dump = tempfile.TemporaryDirectory(prefix="kbatch-xla-", ignore_cleanup_errors=True)
        self._worker = self._within(limit_bytes)
        self._limit_bytes = limit_bytes  # of the worker
        self._prepared: Worker | None = None
        self._facts: ModelFacts | None = None
        self._begin_seconds = self._first_seconds = self._slowest_seconds = 0.0
        self._later_seconds: list[float] = []  # of steps after the first
        self._compiled = 0  # bytes of a size that could be compiled
        self._passed_alone: set[str] = set()  # functions that passed with one example

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
        return self._try(f"{WORKER}:probe", (batch_size, STEPS), self.timeout_seconds)

    def steps(self, batch_size: int, steps: int) -> Probe:
        """Train `steps` steps."""
        return self._try(f"{WORKER}:probe", (batch_size, steps), self.timeout_seconds)

    def train(self, batch_size: int, steps: int, validation_batch_size: int | None = None) -> Probe:
        """Train `steps` steps as `fit` does, and validate."""
        timeout = self.timeout_seconds
        if self._first_seconds:
            slow = self._first_seconds + self._slowest_seconds * steps
            timeout = PATIENCE_SECONDS + SLOWER * slow
            if isinstance(self._on_probe, Patience):
                self._on_probe.expect(batch_size, steps, self._expected(steps))
        self.facts()
        return self._try(
            f"{WORKER}:confirm", (batch_size, steps, validation_batch_size or batch_size), timeout
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
        """See `_worker.traced_moments`."""
        return self._ask(f"{WORKER}:traced_moments")

    def most_elements(self) -> float:
        """See `_worker.traced_most_elements`."""
        return self._ask(f"{WORKER}:traced_most_elements")

    def digest(self) -> str:
        """See `_worker.traced_digest`."""
        return self._ask(f"{WORKER}:traced_digest")

    def compiled_bytes(self, batch_size: int) -> int:
        """See `_worker.traced_compiled_bytes`.

        A size that cannot be compiled is too large if one example can.
        """
        self.facts()
        answer = self._worker.call(
            f"{WORKER}:traced_compiled_bytes", batch_size, timeout_seconds=self.timeout_seconds
        )
        if batch_size > 1 and self._may_be_too_large(answer):
            self._worker.close()
            self._compiled = self._compiled or self.compiled_bytes(1)
            return _probe.TOO_LARGE
        self._compiled = self._answer(answer)
        return self._compiled

    def is_compiled_by_xla(self) -> bool:
        """Whether Keras compiles the model by XLA if nothing is said."""
        return self._ask(f"{WORKER}:is_compiled_by_xla")

    def heaviest(self, augmentations: tuple[str, ...]) -> str:
        """The augmentation pipeline with the most layers."""
        return self._ask(f"{WORKER}:heaviest", augmentations)

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
        flags = _probe.xla_flags(self._dump.name) if self.workload.recipe.jit_compile else {}
        return Worker(
            {**self._environment, **device_memory.limit_environment(limit_bytes), **flags}
        )

    def _try(self, function: str, arguments: tuple[int, ...], timeout_seconds: float) -> Probe:
        self.facts()
        began = time.perf_counter()
        answer = self._worker.call(function, *arguments, timeout_seconds=timeout_seconds)
        if isinstance(answer, Death):
            if answer.exit_code is not None and not is_suspect_exit(answer.exit_code):
                self._answer(answer)
            ended = "hung" if answer.exit_code is None else "died"
            probe = Probe(arguments[0], ended, 0, time.perf_counter() - began, message=str(answer))
        elif self._may_be_too_large(answer) and self._passes_alone(function, arguments):
            # an error that is gone the second time was not of the size
            again = self._worker.call(function, *arguments, timeout_seconds=timeout_seconds)
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
        self._on_probe(probe)
        return probe

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of a function about the model."""
        self.facts()
        return self._answer(
            self._worker.call(function, *arguments, timeout_seconds=self.timeout_seconds)
        )

    def _may_be_too_large(self, answer: Any) -> bool:
        """Whether an answer is an error of the model's or of TensorFlow's own, or a death.

        Kernels refuse more than 2**31 elements, and cuDNN some large shapes, with errors of many
        kinds.
        """
        if isinstance(answer, Death):
            return answer.exit_code is None or is_suspect_exit(answer.exit_code)
        return isinstance(answer, Refusal) and not answer.kind

    def _passes_alone(self, function: str, arguments: tuple[int, ...]) -> bool:
        """Whether one example passes in a new process, so that an error is due to the size."""
        if arguments[0] == 1:
            return False
        if function not in self._passed_alone:
            self._worker.close()
            self.facts()
            answer = self._worker.call(
                function, *(1 for _ in arguments), timeout_seconds=self.timeout_seconds
            )
            if not isinstance(answer, Probe) or not answer.passed:
                return False
            self._passed_alone.add(function)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _ignore(probe: Probe) -> None:
    """Nobody is told."""


def _tell_of_lowest(values: Mapping[str, Any]) -> None:
    """Warn that the model is measured with values that nobody chose: larger ones need more."""
    if values:
        users_code.warn(
            f"The model is measured with your hyperparameters at their lowest values: "
            f"{text_of_values(values)}; give values= of the largest that will train."
        )
