"""NVIDIA cards, found without TensorFlow: in containers, WSL2 and MIG, and those not used."""

import subprocess
import warnings

import forked
import pytest

from kbatch.memory import _cache
from kbatch.runtime import nvidia

LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-8932f937)\n  MIG 1g.10gb Device 0: (UUID: MIG-1)\n"
CPU = "CPU AMD EPYC, 2 cores"


@pytest.fixture
def machine(monkeypatch):
    """Sets which files there are, and what `nvidia-smi` answers."""

    def machine(*files, smi=""):
        def run(command, **rest):
            if not smi:
                raise FileNotFoundError("nvidia-smi")
            return subprocess.CompletedProcess(command, 0, smi, "")

        monkeypatch.setattr(nvidia.glob, "glob", lambda place: list(filter(matches(place), files)))
        monkeypatch.setattr(nvidia.os.path, "exists", lambda path: path in files)
        monkeypatch.setattr(nvidia.subprocess, "run", run)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia._kept_answer.cache_clear()
    nvidia._told.clear()
    yield machine
    nvidia._kept_answer.cache_clear()


def matches(place):
    import fnmatch

    return lambda file: fnmatch.fnmatchcase(file, place)


@pytest.mark.parametrize(
    ("files", "smi", "found"),
    [
        ((), "", False),
        (("/dev/nvidia0",), "", True),
        (("/dev/nvidia3",), "", True),
        (("/dev/nvidiactl", "/dev/nvidia-uvm"), "", False),
        (("/proc/driver/nvidia/gpus/0000:01:00.0",), "", True),
        (("/dev/dxg",), LISTED, True),
        (("/dev/dxg",), "", False),  # another maker's, under WSL2
    ],
)
def test_a_card_is_found_wherever_it_shows(files, smi, found, machine):
    machine(*files, smi=smi)
    assert nvidia.has_card() is found


def test_cards_and_their_mig_instances_are_in_the_caches_key(machine):
    machine()
    without = _cache.key({})
    machine(smi=LISTED)
    nvidia._kept_answer.cache_clear()
    assert nvidia.card_names() == (
        "GPU 0: NVIDIA H100 (UUID: GPU-8932f937)",
        "MIG 1g.10gb Device 0: (UUID: MIG-1)",
    )
    assert "MIG 1g.10gb" in _cache.device()
    assert _cache.key({}) != without


@pytest.mark.parametrize(
    ("smi", "told"),
    [
        ("81559, 80995\n", (81559 << 20, 80995 << 20)),
        ("[N/A], [N/A]\n", None),
        ("No devices were found\n", None),
        ("1, 2\n3, 4\n", None),
        ("", None),
    ],
)
def test_memory_is_told_by_nvidia_smi_or_not_at_all(smi, told, machine, monkeypatch):
    machine(smi=smi)
    monkeypatch.setattr(nvidia, "first_visible_card", lambda: "0")
    assert nvidia.smi_memory_bytes() == told


@pytest.mark.parametrize(
    ("visible", "order", "asked"),
    [
        (None, None, None),  # of two models, which one CUDA calls 0 is unknown
        (None, "PCI_BUS_ID", "--id=0"),
        ("1", "PCI_BUS_ID", "--id=1"),
        ("GPU-bb", None, "--id=GPU-bbbb-2"),
        ("GPU-zz", None, None),
        ("", None, None),
    ],
)
def test_another_cards_memory_is_not_told(visible, order, asked, machine, monkeypatch):
    machine()
    commands = []

    def run(command, **rest):
        commands.append(command[-1])
        described = "T4, GPU-aaaa-1, 570.1, 15360 MiB\nH100, GPU-bbbb-2, 570.1, 81559 MiB\n"
        said = "81559, 80995\n" if command[-1].startswith("--id") else described
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(nvidia.subprocess, "run", run)
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert (nvidia.smi_memory_bytes() is not None) == (asked is not None)
    assert [each for each in commands if each.startswith("--id")] == [asked] * (asked is not None)


@pytest.mark.parametrize(
    ("device", "visible", "warned"),
    [
        (CPU, None, True),
        (CPU, "0", True),
        (CPU, "-1", False),
        (CPU, "", False),
        ("NVIDIA H100", None, False),
    ],
)
def test_a_card_that_is_not_used_is_told_of_once(device, visible, warned, machine, monkeypatch):
    machine("/dev/nvidia0")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        nvidia.tell_of_unused_card(device)
        nvidia.tell_of_unused_card(device)
    assert len(said) == warned
    assert all("kbatch doctor" in str(each.message) for each in said)


def test_a_training_and_a_search_warn_of_an_unused_card(machine, build, points, tmp_path):
    from short_searches import search, tuner_of

    import kbatch

    machine("/dev/nvidia0")
    (x, y), validation = points
    with pytest.warns(UserWarning, match="NVIDIA card that TensorFlow does not see"):
        kbatch.train(kbatch.Recipe(), build, x, y, validation, epochs=1)
    nvidia._told.clear()
    with pytest.warns(UserWarning, match="NVIDIA card that TensorFlow does not see"):
        search(tuner_of(tmp_path, max_trials=1), points)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        nvidia.tell_of_unused_card(CPU)  # once in a process


def test_the_driver_warns_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    said = forked.code(
        "import sys\nfrom kbatch.runtime import nvidia\nnvidia.has_card = lambda: True\n"
        "from kbatch.cli import search_run\n"
        "run = search_run.SearchRun\n"
        "run.search_and_confirm = lambda *args: print('trained', file=sys.stderr)\n"
        "search_run.report.write = search_run.report.report = lambda folder: []\n"
        "sys.argv = ['kbatch', 'cats-vs-dogs', '--image-size', '16', '--max-batch', 'off', "
        f"'--out', {str(tmp_path)!r}]\nfrom kbatch.__main__ import main\nmain()"
    )
    assert said.stderr.index("TensorFlow does not see") < said.stderr.index("trained"), said
