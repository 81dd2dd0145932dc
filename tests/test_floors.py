"""Imports go strictly to a lower floor, and some libraries are imported in one room only."""

import ast
import re
import sys
from pathlib import Path

import pytest

import kbatch

ROOT = Path(kbatch.__file__).parent
FLOORS = {
    "errors": -5,
    "number_text": -4,
    "distribution": -4,
    "plain_text": -4,
    "plain_console": -1,
    "given_values": -3,
    "json_form": -3,
    "dtype_policy": -3,
    "recompute_strategy": -3,
    "training_method": -3,
    "batch_growth": -3,
    "recipe_fields": -2,
    "recipe_agreement": -1,
    "recipe_row": -2,
    "code": -1,
    "recipe": 0,
    "option": -1,
    "axis": 0,
    "axis_checks": 0,
    "axes": 1,
    "space_agreement": 1,
    "command_option": 0,
    "notebook": -1,
    "text_table": -1,
    "outcome": 0,
    "scoring": 0,
    "search": 1,
    "rules": 0,
    "records": 1,
    "device": 1,
    "model_spec": 1,
    "goal": 1,
    "runtime": 0,
    "tracing": 1,
    "data": 1,
    "callbacks": 2,
    "recompute": 2,
    "space": 2,
    "combination": 3,
    "building": 3,
    "checks": 4,
    "plain_keras": 5,
    "results": 3,
    "training": 6,
    "advice": 6,
    "memory": 5,
    "problems": 0,
    "tuner_border": 5,
    "tuner": 5,
    "hypermodel": 7,
    "sources": 6,
    "driver": 9,
    "page": 7,
    "testing": 8,
    "search_tuner": 8,
    "case_study": 10,
    "gpu_checks": 11,
    "studies": 11,
    "cli": 12,
    "__main__": 13,
}
CHARTS = {
    f"results.charts.{name}"
    for name in ("batches", "canvas", "curves", "plans", "space", "study_groups", "throughput")
}
ONLY_IN = {
    "keras_tuner": {
        "tuner_border",
        "hypermodel",
        "runtime.keras_tuner_private",
        "tuner",
        "building.hyperparameters",
        "driver.tuners",
        "search.axis_ranges",
        "search.oracle",
        "search_tuner",
        "testing._recipe_points",
        "testing._replay",
        "testing._replayed_search",
        "training.repeat",
    },
    "altair": CHARTS,
    "vl_convert": {"results.charts.canvas"},
    "jinja2": {"page.html"},
    "tensorflow.python": {"runtime.tensorflow_private"},
    "keras.src": {"runtime.keras_private"},
    "keras_tuner.src": {"runtime.keras_tuner_private"},
    "typer": {
        "command_option",
        "case_study.options",
        "driver.options",
        *(
            f"cli.{name}"
            for name in ("app", "command", "compare", "doctor", "failure", "report", "study")
        ),
        *(
            f"cli.{name}_options"
            for name in ("advise", "doctor", "export", "max_batch", "recompute", "search")
        ),
    },
    "optuna": {"search.axis_ranges", "search.proposals"},
    "loky": {"runtime.worker", "runtime.loky_private"},
    "msgspec": {"json_form"},
    "pynvml": {"device.utilisation"},
    "tensorflow_datasets": {"case_study.sources", "sources.tfds"},
}
MODULES = sorted(
    path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name != "__init__.py"
)


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_strictly_to_a_lower_floor(path):
    room = name_of(path).split(".")[0]
    for name in imports(path):
        other = name.split(".")[1] if name.startswith("kbatch.") else room
        if other in FLOORS and other != room:
            assert FLOORS[other] < FLOORS[room], f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_some_libraries_are_imported_in_one_room_only(path):
    for name in imports(path):
        for library, rooms in ONLY_IN.items():
            if name == library or name.startswith(library + "."):
                assert name_of(path) in rooms, f"{name_of(path)} imports {name}"


def test_rules_and_records_need_little_else():
    for path in MODULES:
        if name_of(path).startswith(("rules", "records")):
            libraries = {name.split(".")[0] for name in imports(path)} - {"kbatch"}
            assert libraries <= sys.stdlib_module_names, name_of(path)
    form = set(imports(ROOT / "json_form.py"))
    assert {name.split(".")[0] for name in form} - sys.stdlib_module_names == {"msgspec", "kbatch"}
    assert all(name.startswith("kbatch.plain_text") for name in form if "kbatch" in name)
    text = {name.split(".")[0] for name in imports(ROOT / "plain_text.py")}
    assert text - sys.stdlib_module_names == {"pandas"}  # for its type hints


def test_the_map_in_the_package_is_that_of_the_floors():
    drawn = {}
    for floor, rooms in re.findall(r"(?m)^ +(-?\d+)  (.+)$", kbatch.__doc__):
        drawn.update(dict.fromkeys(rooms.split(" · "), int(floor)))
    assert drawn == {name: floor for name, floor in FLOORS.items() if name != "__main__"}


def test_no_two_modules_import_each_other_even_inside_functions():
    # a package's __init__ only names what is below it
    modules = [path for path in MODULES if path.name != "__init__.py"]
    names = {f"kbatch.{name_of(path)}" for path in modules}
    wanted = {f"kbatch.{name_of(path)}": set(imports(path)) & names for path in modules}
    while wanted:
        free = [name for name, others in wanted.items() if not others & wanted.keys() - {name}]
        assert free, f"these import each other: {sorted(wanted)}"
        for name in free:
            del wanted[name]


# words of the field
NOUNS_IN_ING = {
    "setting",
    "scoring",
    "testing",
    "loading",
    "ranking",
    "label_smoothing",
    "training",
    "tracing",
    "building",
    "finding",
}


def test_modules_are_named_by_nouns():
    parts = {part.removeprefix("_") for path in MODULES for part in name_of(path).split(".")}
    assert {part for part in parts if part.endswith("ing")} <= NOUNS_IN_ING


def test_names_of_tests_are_short():
    names = [
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(names) > 600
    assert [name for name in names if len(name) > 60] == []


def test_modules_are_at_most_600_lines():
    lines = {str(path): path.read_text().count("\n") for path in MODULES}
    assert {path: count for path, count in lines.items() if count > 600} == {}


def test_bodies_are_at_most_50_lines():
    long = [
        f"{path.name}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and _lines_of_body(node) > 50
    ]
    assert long == []


def _lines_of_body(function):
    """The lines of a function after its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_tests_that_are_listed_as_slow_exist():
    here = Path(__file__).parent
    for line in (here / "slow_tests.txt").read_text().splitlines():
        file, _, name = line.partition("[")[0].partition("::")
        assert f"def {name}(" in (here.parent / file).read_text(), line
