"""The sampler, against a scripted `pynvml`: its sums, what it survives, and that it ends."""

import sys
import threading
from types import SimpleNamespace

import pytest

from kbatch.runtime.nvidia import Sampler, Utilisation


class FakeNvml:
    """Answers with a script of (percent, bytes) or exceptions.

    When the script has ended, `over` is set and every question fails.
    """

    def __init__(self, script=((50, 100),), uuids=("GPU-aaaa-1", b"GPU-bbbb-2"), broken=()):
        self.names = [b"NVIDIA H100"]
        self.script, self.uuids, self.broken = list(script), uuids, broken
        self.over = threading.Event()
        self.asked, self.shut = [], 0

    def _may(self, name):
        if name in self.broken:
            raise RuntimeError(f"{name}: NVML_ERROR")

    def nvmlInit(self):
        self._may("init")

    def nvmlShutdown(self):
        self.shut += 1
        self._may("shutdown")

    class NVMLError_NotSupported(Exception):
        pass

    def nvmlDeviceGetName(self, card):
        return self.names[card % len(self.names)]

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetUUID(self, card):
        return self.uuids[card]

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.uuids):
            raise RuntimeError("NVML_ERROR_INVALID_ARGUMENT")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetUtilizationRates(self, card):
        self.asked.append(card)
        if len(self.script) <= 1:
            self.over.set()
        if not self.script:
            raise RuntimeError("the script is over")
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        percent, self.used = step
        return SimpleNamespace(gpu=percent, memory=0)

    def nvmlDeviceGetMemoryInfo(self, card):
        self._may("memory")
        return SimpleNamespace(used=self.used, total=1000)


@pytest.fixture(autouse=True)
def every_card_is_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def sample(monkeypatch, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with Sampler(interval_seconds=0.001) as sampler:
        assert nvml.over.wait(30)
    return sampler


def asked(monkeypatch, nvml):
    """What a sampler tells of a block without anything in it."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with Sampler(0.001) as sampler:
        pass
    assert threads() == []
    return sampler.result()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "kbatch-utilisation"]


def test_mean_and_maximum_over_the_samples(monkeypatch):
    nvml = FakeNvml([(10, 100), (90, 400), (50, 100)])
    assert sample(monkeypatch, nvml).result() == Utilisation(50.0, 90.0, 200.0, 400, 3)
    assert nvml.shut == 1


def test_errors_in_the_middle_are_survived(monkeypatch):
    nvml = FakeNvml(
        [
            (10, 100),
            RuntimeError("NVML_ERROR_UNKNOWN"),
            RuntimeError("NVML_ERROR_GPU_IS_LOST"),
            (30, 300),
        ]
    )
    assert sample(monkeypatch, nvml).result() == Utilisation(20.0, 30.0, 200.0, 300, 2)


def test_no_thread_is_left_and_the_sampler_starts_afresh(monkeypatch):
    sampler = sample(monkeypatch, FakeNvml([(10, 100)]))
    assert threads() == []
    again = FakeNvml([(80, 800)])
    monkeypatch.setitem(sys.modules, "pynvml", again)
    with sampler:
        assert threads()[0].daemon
        assert again.over.wait(30)
    assert threads() == []
    assert sampler.result() == Utilisation(80.0, 80.0, 800.0, 800, 1)


def test_the_users_error_passes_through_and_the_thread_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    with pytest.raises(KeyError, match="theirs"), Sampler(0.001):
        raise KeyError("theirs")
    assert threads() == []


def test_without_pynvml_there_is_no_thread_and_no_result(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Sampler() as sampler:
        assert threads() == []
    assert sampler.result() is None


@pytest.mark.parametrize(
    ("nvml", "shut"),
    [
        (FakeNvml(broken=["init"]), 0),
        (FakeNvml(broken=["init", "shutdown"]), 0),
        (FakeNvml(uuids=()), 1),
        (FakeNvml(uuids=(), broken=["shutdown"]), 1),
        (FakeNvml(broken=["memory"]), 1),
    ],
    ids=["no driver", "nothing works", "no card", "no card, no farewell", "memory unknown"],
)
def test_a_card_without_utilisation_gives_no_result(monkeypatch, nvml, shut):
    assert asked(monkeypatch, nvml) is None
    assert nvml.shut == shut


def test_a_thread_that_cannot_start_is_done_without(monkeypatch):
    def full(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    assert asked(monkeypatch, FakeNvml()) is None


@pytest.mark.parametrize(
    ("visible", "card"),
    [
        ("0", 0),
        ("1,0", 1),
        (" 1 ", 1),
        ("GPU-aaaa-1", 0),
        ("GPU-bbbb,GPU-aaaa", 1),
        ("MIG-cccc", "MIG-cccc"),
    ],
)
def test_the_first_visible_card_is_asked(monkeypatch, visible, card):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml()
    assert sample(monkeypatch, nvml).result().samples == 1
    assert set(nvml.asked) == {card}


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-dddd", "nonsense"])
def test_a_hidden_card_is_not_asked(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml()
    assert (asked(monkeypatch, nvml), nvml.asked) == (None, [])


def test_a_mig_instance_tells_its_memory_without_a_load(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cccc")
    nvml = FakeNvml()
    nvml.script = [(10, 700), FakeNvml.NVMLError_NotSupported(), FakeNvml.NVMLError_NotSupported()]
    assert sample(monkeypatch, nvml).result() == Utilisation(10.0, 10.0, 700.0, 700, 3)
    only_memory = FakeNvml()
    only_memory.used = 700
    only_memory.script = [FakeNvml.NVMLError_NotSupported()]
    assert sample(monkeypatch, only_memory).result() == Utilisation(None, None, 700.0, 700, 1)


def test_of_cards_of_different_models_one_must_be_named(monkeypatch):
    """CUDA counts the fastest first, NVML by bus: the same number may be another card."""
    mixed = FakeNvml()
    mixed.names = ["NVIDIA H100", "NVIDIA T4"]
    assert (asked(monkeypatch, mixed), mixed.asked) == (None, [])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert sample(monkeypatch, mixed).result().samples == 1
