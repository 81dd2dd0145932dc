"""A prober: its processes, and the lines that tell of them."""

import io
import math
import warnings

import numpy as np
import pytest
from rich.console import Console

from kbatch.errors import ModelError, SpaceError
from kbatch.memory import _prober as module
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import (
    PATIENCE_SECONDS,
    SLOWER,
    TOO_LARGE,
    WORKER,
    ModelFacts,
    Prober,
    Refusal,
    printing_lines,
    shown_lines,
)
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec
from kbatch.runtime import device_memory
from kbatch.runtime.worker import Death

LIMIT = 400 * device_memory.MIB


class FakeWorker:
    """Notes what it is asked; a step takes a tenth of a second after a first one of two."""

    every: list = []
    sizes: list = []
    refused_from: float = math.inf
    refused_with = Refusal("", "", "InvalidArgumentError: tensor size <= int32 max", "")

    def __init__(self, environment):
        self.mebibytes = int(environment[device_memory.CPU_LIMIT])
        self.alive, self.calls, self.timeouts, self.prepared = False, [], [], []
        FakeWorker.every.append(self)

    def prepare(self, function):
        self.alive = True
        self.prepared.append(function)

    def call(self, function, *arguments, timeout_seconds):
        self.alive = True
        if function == f"{WORKER}:answer":
            function, *arguments = arguments
        self.calls.append(function)
        self.timeouts.append(timeout_seconds)
        if function == f"{WORKER}:begin":
            return ModelFacts(self.mebibytes * device_memory.MIB, "CPU", 0, 0, 0, 0)
        FakeWorker.sizes.append(arguments[0])
        if arguments[0] >= FakeWorker.refused_from:
            return FakeWorker.refused_with
        if function == "compiled_bytes":
            return arguments[0] * 1000
        return Probe(arguments[0], "passed", 1, 1.0, (2.0, 0.1, 0.1))

    def close(self):
        self.alive = False


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "every", [])
    monkeypatch.setattr(FakeWorker, "sizes", [])
    monkeypatch.setattr(FakeWorker, "refused_from", math.inf)
    monkeypatch.setattr(FakeWorker, "refused_with", FakeWorker.refused_with)
    return FakeWorker.every


def prober():
    return Prober(Workload(ModelSpec(lambda: None), (np.zeros((1, 4)),)), LIMIT)


def test_confirmations_are_fresh_processes_with_less_memory(workers):
    with prober() as probing:
        probing.probe(8)
        probing.prepare()
        probing.prepare()  # once is enough
        assert [worker.mebibytes for worker in workers] == [400, 372]
        assert workers[1].prepared == [f"{WORKER}:prepare"]
        probing.confirm(8, 10)
        probing.confirm(7, 10)
    assert [worker.mebibytes for worker in workers] == [400, 372, 372]
    assert [worker.calls for worker in workers] == [
        [f"{WORKER}:begin", "probe"],
        [f"{WORKER}:begin", "confirm"],
        [f"{WORKER}:begin", "confirm"],
    ]
    assert not any(worker.alive for worker in workers)


def test_the_predicted_size_is_confirmed_in_the_first_process(workers):
    with prober() as probing:
        assert probing.confirm_at_once(8, 10).passed
    assert [worker.mebibytes for worker in workers] == [400]
    assert workers[0].calls == [f"{WORKER}:begin", "confirm_spared"]


def test_what_was_prepared_and_not_used_is_closed(workers):
    with prober() as probing:
        probing.prepare()
        assert workers[1].alive
    assert not workers[1].alive


def test_the_limit_is_the_whole_one_in_whichever_process(workers):
    with prober() as probing:
        probing.confirm(8, 10)
        assert probing.facts().limit_bytes == LIMIT


def test_a_training_that_waits_for_memory_is_not_waited_for(workers):
    with prober() as probing:
        probing.confirm(8, 10)
        assert workers[-1].timeouts[-1] == probing.timeout_seconds  # nothing is known of its speed
        probing.confirm(8, 10)
        assert workers[-1].timeouts[-1] == pytest.approx(
            PATIENCE_SECONDS + SLOWER * (2.0 + 10 * 0.1)
        )


def test_an_error_at_a_size_is_no_bug_if_one_example_trains(workers):
    FakeWorker.refused_from = 100
    with prober() as probing:
        probe = probing.probe(128)
        assert (probe.ended, "int32 max" in probe.message) == ("suspect", True)
        assert probing.probe(64).passed
        assert probing.probe(128).ended == "suspect"  # asked once
        # one example, and the size once more; one example is asked for once
        assert FakeWorker.sizes == [128, 1, 128, 64, 128, 128]
        assert probing.confirm(128, 10).ended == "suspect"
        assert FakeWorker.sizes[6:] == [128, 1, 128]  # validation may fail by itself


def test_an_error_that_is_gone_the_second_time_is_forgotten(workers, monkeypatch):
    call = FakeWorker.call

    def once(worker, function, *arguments, timeout_seconds):
        answer = call(worker, function, *arguments, timeout_seconds=timeout_seconds)
        first = arguments[0] == "probe" and FakeWorker.sizes == [128]
        return FakeWorker.refused_with if first else answer

    monkeypatch.setattr(FakeWorker, "call", once)
    with prober() as probing:
        assert probing.probe(128).passed
    assert FakeWorker.sizes == [128, 1, 128]


def test_a_card_that_the_prober_hides_is_not_warned_of(workers, monkeypatch):
    monkeypatch.setattr("kbatch.runtime.nvidia.may_use_card", lambda: True)
    monkeypatch.setattr("kbatch.runtime.nvidia._told", set())
    workload = Workload(ModelSpec(lambda: None), (np.zeros((1, 4)),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Prober(workload, LIMIT, environment={"CUDA_VISIBLE_DEVICES": "-1"}) as probing:
            probing.facts()
    with pytest.warns(UserWarning, match="does not see"), prober() as probing:
        probing.facts()


def test_an_error_at_one_example_is_a_bug_and_told_at_once(workers):
    FakeWorker.refused_from = 1
    with prober() as probing, pytest.raises(ModelError, match="int32 max"):
        probing.probe(128)
    assert FakeWorker.sizes == [128, 1]


def test_a_refusal_of_kbatchs_own_is_not_tried_again(workers):
    FakeWorker.refused_from, FakeWorker.refused_with = 1, Refusal("SpaceError", "A", "b", "C")
    with prober() as probing, pytest.raises(SpaceError):
        probing.probe(128)
    assert FakeWorker.sizes == [128]


@pytest.mark.parametrize(
    "answer",
    [Refusal("", "", "Autotuning failed for HLO", ""), Death(-9, ""), Death(None, "")],
    ids=["error", "killed", "hung"],
)
def test_what_cannot_be_compiled_is_too_large_if_one_can(answer, workers):
    FakeWorker.refused_from, FakeWorker.refused_with = 100, answer
    with prober() as probing:
        assert probing.compiled_bytes(128) == TOO_LARGE
        assert probing.compiled_bytes(64) == 64_000
        assert probing.compiled_bytes(128) == TOO_LARGE
        assert FakeWorker.sizes == [128, 1, 64, 128]
        FakeWorker.refused_from = 1
        probing.another(probing.workload)
        with pytest.raises(ModelError):
            probing.compiled_bytes(128)


PROBE = Probe(64, "out_of_memory", 10**8, 12.0, (0.5, 0.5))


def test_an_own_function_is_called_instead():
    said = []
    shown_lines(said.append)(PROBE)
    assert said == [PROBE]


def test_a_probe_is_a_line_and_its_bytes_are_explained_once():
    text = io.StringIO()
    lines = printing_lines(Console(file=text, force_terminal=False, width=100))
    for _ in range(2):
        lines(PROBE)
    words = "batch 64 out of memory 100 MB 2 steps 12.0 s"
    assert " ".join(text.getvalue().splitlines()[0].split()) == words
    assert text.getvalue().count("those in use when it failed") == 1


def test_nobody_watches():
    assert shown_lines(None) is None  # standard error is a file in tests
    assert printing_lines(None) is None


def test_a_size_that_is_tried_first_is_announced():
    written = io.StringIO()
    lines = printing_lines(Console(file=written, width=200))
    lines.try_first(29, 20)
    assert "batch 29     is predicted to fit: up to 20 steps" in written.getvalue()


def test_a_training_that_takes_long_is_announced():
    text = io.StringIO()
    lines = printing_lines(Console(file=text, force_terminal=False, width=120))
    lines.expect(64, 20, 3.0)
    assert text.getvalue() == ""
    lines.expect(7825, 20, 242.0)
    assert (
        "batch 7825   is confirmed by 20 steps in a fresh process, about 242 s" in text.getvalue()
    )
