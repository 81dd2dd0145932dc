"""Processes that a prober starts: how much memory they get and how long it waits for them."""

import numpy as np
import pytest

from kbatch.device import limit
from kbatch.memory import _prober as module
from kbatch.memory._probe import ModelFacts, Probe
from kbatch.memory._prober import PATIENCE_SECONDS, SLOWER, WORKER, Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

LIMIT = 400 * limit.MIB


class FakeWorker:
    """Notes what it is asked; a step takes a tenth of a second after a first one of two."""

    every = []

    def __init__(self, environment):
        self.mebibytes = int(environment[limit.CPU_LIMIT])
        self.alive, self.calls, self.timeouts, self.prepared = False, [], [], []
        FakeWorker.every.append(self)

    def prepare(self, function):
        self.alive = True
        self.prepared.append(function)

    def call(self, function, *arguments, timeout_seconds):
        self.alive = True
        self.calls.append(function)
        self.timeouts.append(timeout_seconds)
        if function == f"{WORKER}:begin":
            return ModelFacts(self.mebibytes * limit.MIB, "CPU", 0, 0, 0, 0)
        return Probe(arguments[0], "passed", 1, 1.0, (2.0, 0.1, 0.1))

    def close(self):
        self.alive = False


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(module, "Worker", FakeWorker)
    FakeWorker.every = []
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
        [f"{WORKER}:begin", f"{WORKER}:probe"],
        [f"{WORKER}:begin", f"{WORKER}:confirm"],
        [f"{WORKER}:begin", f"{WORKER}:confirm"],
    ]
    assert not any(worker.alive for worker in workers)


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
