import importlib
import pkgutil
import subprocess
import sys

import pytest

import kbatch

NAMES = [
    *("HyperModel", "Outcome", "Recipe", "Space", "best_recipe", "callbacks", "confirm", "find_max_batch", "max_batches", "memory", "objective"),
    *("recompute", "register_augmentation", "report", "results", "score", "throughput", "train"),
]


def test_the_public_list_is_short_and_known():
    assert sorted(kbatch.__all__, key=str.lower) == sorted(NAMES, key=str.lower)
    assert set(NAMES) <= set(dir(kbatch))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves_to_the_same_object_twice(name):
    first = getattr(kbatch, name)
    for module in pkgutil.walk_packages(kbatch.__path__, "kbatch."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert getattr(kbatch, name) is first
    assert first.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="maximal_batch"):
        kbatch.maximal_batch  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import kbatch",
        "import kbatch.cli",
        "import kbatch; kbatch.Recipe(), kbatch.Space(), kbatch.score",
        "import kbatch; kbatch.find_max_batch, kbatch.max_batches, kbatch.throughput, kbatch.memory.estimate; import kbatch.max_batch",
        "import kbatch; kbatch.results.load, kbatch.report, kbatch.best_recipe",
    ],
)
def test_tensorflow_is_not_imported_before_it_is_needed(code):
    check = f"{code}\nimport sys\nassert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_memory_is_a_room_with_one_function():
    assert kbatch.memory.__all__ == ["estimate"]
    assert callable(kbatch.memory.estimate)
    with pytest.raises(AttributeError, match="guess"):
        kbatch.memory.guess  # noqa: B018
