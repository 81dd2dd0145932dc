import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

import kbatch

NAMES = [
    *(
        "CutMix",
        "Advice",
        "HyperModel",
        "LocalExecutor",
        "MixUp",
        "ModelSpec",
        "Outcome",
        "RayExecutor",
        "Recipe",
        "Space",
        "Tuner",
        "advise",
        "best_recipe",
        "callbacks",
        "confirm",
        "errors",
        "find_max_batch",
        "load_ipython_extension",
        "max_batches",
        "memory",
    ),
    *(
        "noise_scale",
        "objective",
        "recompute",
        "register_augmentation",
        "report",
        "results",
        "retrain",
        "score",
        "starting_recipe",
        "testing",
        "throughput",
        "train",
        "unload_ipython_extension",
        "tune",
        "Tuned",
    ),
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
        (
            "import kbatch; kbatch.find_max_batch, kbatch.max_batches, "
            "kbatch.throughput, kbatch.memory.estimate; import kbatch.cli.app"
        ),
        "import kbatch; kbatch.advise(kbatch.Recipe()), kbatch.starting_recipe('accuracy')",
        "import kbatch; kbatch.results.load, kbatch.report, kbatch.best_recipe",
    ],
)
def test_tensorflow_is_not_imported_before_it_is_needed(code):
    check = (
        f"{code}\nimport sys\nassert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_memory_has_one_function_and_the_types_of_results():
    assert [name for name in kbatch.memory.__all__ if name.islower()] == ["estimate"]
    assert callable(kbatch.memory.estimate)
    with pytest.raises(AttributeError, match="guess"):
        kbatch.memory.guess  # noqa: B018


def public_members():
    """Every public function and method, with its full name."""
    for room in (kbatch, kbatch.callbacks, kbatch.memory, kbatch.recompute, kbatch.results):
        for name in room.__all__:
            member = getattr(room, name)
            if inspect.isfunction(member):
                yield f"{room.__name__}.{name}", member
            if inspect.isclass(member):
                own = inspect.getmembers(
                    member, lambda each: inspect.isfunction(each) or isinstance(each, property)
                )
                for part, each in own:
                    if part == "__init__" or not part.startswith("_"):
                        yield (
                            f"{room.__name__}.{name}.{part}",
                            each.fget if isinstance(each, property) else each,
                        )


MEMBERS = dict(public_members())


@pytest.mark.parametrize("name", MEMBERS)
def test_every_type_that_it_takes_or_returns_has_a_public_path(name):
    """A path without a name that begins with an underscore."""
    signature = inspect.signature(MEMBERS[name])
    texts = [str(each.annotation) for each in signature.parameters.values()] + [
        str(signature.return_annotation)
    ]
    words = {word for text in texts for word in re.findall(r"\b[A-Z][A-Za-z]+\b", text)}
    exported = {
        each
        for room in (kbatch, kbatch.memory, kbatch.recompute, kbatch.results, kbatch.callbacks)
        for each in room.__all__
    }
    for word in words - exported:
        defined = DEFINED.get(word, set())
        assert not defined or any("._" not in module for module in defined), (
            f"{word} stands only in {defined}"
        )


def classes():
    """The modules of every class of kbatch's, by the name of the class."""
    found = {}
    for module in pkgutil.walk_packages(kbatch.__path__, "kbatch."):
        if not module.name.endswith("__main__"):
            for word, _ in inspect.getmembers(
                importlib.import_module(module.name), inspect.isclass
            ):
                if getattr(sys.modules[module.name], word).__module__ == module.name:
                    found.setdefault(word, set()).add(module.name)
    return found


DEFINED = classes()


def test_names_are_there_and_import_nothing_that_draws():
    code = (
        "import kbatch\n"
        "for each in kbatch.errors.KbatchError, kbatch.testing.FakeTime, kbatch.memory.MaxBatch:\n"
        "    print(each.__name__)\n"
        "import sys, kbatch.cli.app, kbatch.training.progress\n"
        "kbatch.report, kbatch.results, kbatch.throughput, kbatch.Tuner\n"
        "print([name for name in ('altair', 'vl_convert', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["KbatchError", "FakeTime", "MaxBatch", "[]"], done.stderr
