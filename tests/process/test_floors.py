"""Imports go strictly to a lower floor, and some libraries are imported in one room only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kbatch

ROOT = Path(kbatch.__file__).parent
CHARTS = {"canvas", "results.charts"}
ONLY_IN = {
    "keras_tuner": {
        "search.tuner_border",
        "hypermodel",
        "runtime.keras_tuner_private",
        "models.maker",
        "cli.search_run",
        "standin.own_fit",
        "standin.search_call",
        "standin.script_hypermodel",
        "search.proposals",
        "search.oracle",
        "tuner",
        "testing._table",
        "testing._replay",
        "training.trial",
    },
    "altair": CHARTS,
    "vl_convert": {"canvas"},
    "jinja2": {"results.page"},
    "tensorflow.python": {"runtime.tensorflow_private"},
    "keras.src": {"runtime.keras_private"},
    "keras_tuner.src": {"runtime.keras_tuner_private"},
    "typer": {
        *(f"cli.{name}" for name in ("advise", "app", "command", "doctor")),
        *(f"cli.{name}" for name in ("max_batch", "recompute", "search_options", "tune")),
    },
    "optuna": {"search.proposals"},
    "loky": {"runtime.worker", "runtime.loky_private"},
    "msgspec": {"plain_text"},
    "pynvml": {"runtime.nvidia"},
    "tensorflow_datasets": {"data.case_study", "data.tfds"},
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


def test_rooms_import_rooms_of_lower_floors_only():
    command = ["lint-imports", "--no-cache"]
    run = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


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
    text = {name.split(".")[0] for name in imports(ROOT / "plain_text.py")}
    assert text - sys.stdlib_module_names == {"kbatch", "msgspec"}


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
    "scaling",
    "setting",
    "outcome",
    "testing",
    "loading",
    "ranking",
    "label_smoothing",
    "training",
    "tracing",
    "finding",
}


def test_modules_are_named_by_nouns():
    parts = {part.removeprefix("_") for path in MODULES for part in name_of(path).split(".")}
    assert {part for part in parts if part.endswith("ing")} <= NOUNS_IN_ING


def test_pure_tests_import_no_tensorflow():
    code = (
        "import pytest, sys; pytest.main(['--collect-only', '-qq', 'tests/pure']); "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "tests/pure/test_scoring.py" in said.stdout


def test_names_of_tests_are_short():
    names = [
        node.name
        for path in Path(__file__).parents[1].glob("*/test_*.py")
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
    here = Path(__file__).parents[1]
    texts = {path.name: path.read_text() for path in here.glob("*/test_*.py")}
    for line in (here / "slow_tests.txt").read_text().splitlines():
        file, _, name = line.partition("[")[0].partition("::")
        assert f"def {name}(" in texts[file], line


SCRIPTS = {path.stem: path for path in (ROOT.parent / "scripts").glob("*.py")}


@pytest.mark.skipif(not SCRIPTS, reason="an installed kbatch has no scripts")
def test_scripts_take_from_each_other_what_is_there():
    """No test runs the benchmarks, and a renamed one would be missed by those that import it."""
    for name, path in SCRIPTS.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in SCRIPTS:
                asked = {alias.name for alias in node.names}
                missing = asked - _defined(SCRIPTS[node.module])
                assert not missing, f"{name} imports {missing} from {node.module}"


def _defined(path):
    """The names at the top level of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
