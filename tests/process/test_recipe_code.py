"""The text of a recipe's code: every field is written, and the text is clean."""

import ast
import dataclasses
import subprocess
import sys

import pytest
from script_cases import RECIPES

from kbatch import Recipe
from kbatch.recipe_words import AUGMENTATIONS, OPTIMIZERS
from kbatch.rules import scaling
from kbatch.script import script
from kbatch.script.parts import Definition, copied, together

# Another value of each field, beside other fields that it needs.
CHANGED = {
    "batch_size": {"batch_size": 48},
    "optimizer": {"optimizer": "sgd"},
    "learning_rate": {"learning_rate": 0.02},
    "warmup_updates": {"warmup_updates": 7},
    "policy": {"policy": "mixed_bfloat16"},
    "augmentation": {"augmentation": "flip"},
    "micro_batch_size": {"micro_batch_size": 8},
    "jit_compile": {"jit_compile": True},
    "recompute": {"recompute": "budget:0.5"},
    "label_smoothing": {"label_smoothing": 0.1},
    "weight_decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.8},
    "beta_2": {"beta_2": 0.99},
    "dropout_scale": {"dropout_scale": 1.5},
    "schedule": {"schedule": "steps"},
    "training": {"training": "sam:0.05"},
    "clip_norm": {"clip_norm": 1.0},
    "accumulation": {"micro_batch_size": 8, "accumulation": "exact"},
    "ema": {"ema": 0.99},
    "batch_schedule": {"batch_schedule": "linear:4"},
    "normalization": {"normalization": "group"},
}
OTHERS = {
    "compiled": Recipe(64, "compiled", None),
    "compiled passes": Recipe(64, "compiled", None, micro_batch_size=16, ema=0.9),
    "recompute": Recipe(recompute="sqrt"),
    "plateau": Recipe(batch_schedule="plateau:8"),
    "noise": Recipe(micro_batch_size=8, batch_schedule="noise:8"),
    "sam passes": Recipe(micro_batch_size=8, training="sam:0.05"),
    "exact passes": Recipe(micro_batch_size=8, accumulation="exact"),
    "own": Recipe(augmentation='gaussian "noise"\n\\ \x00 import os """'),
    "long": Recipe(augmentation="so " * 60),
    **{name: Recipe(augmentation=name) for name in AUGMENTATIONS},
}
EVERY = {**RECIPES, **OTHERS}


def code_of(fields):
    return Recipe(**{"batch_size": 32, **fields}).to_code().split('"""', 2)[2]


def test_every_field_has_an_entry():
    assert set(script.SCRIPT_PARTS) == {field.name for field in dataclasses.fields(Recipe)}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Recipe)])
def test_every_field_changes_the_code(name):
    assert code_of(CHANGED[name]) != code_of({})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("recompute", 'Left out: recompute="sqrt"'),
        ("plateau", 'Left out: batch_schedule="plateau:8"'),
        ("noise", 'Left out: batch_schedule="noise:8"'),
        ("sam passes", "Left out: the 4 passes of 8"),
        ("exact passes", "Left out: the 4 passes of 8"),
        ("own", "TODO: the layers of the augmentation"),
        ("compiled passes", "A schedule of its own would count passes"),
    ],
)
def test_what_is_left_out_is_said_in_a_comment(name, words):
    lines = EVERY[name].to_code().splitlines()
    comments = " ".join(line.strip().strip("# ") for line in lines if line.strip().startswith("#"))
    assert words in comments


@pytest.mark.parametrize("name", EVERY)
def test_the_code_imports_keras_numpy_and_tensorflow_only(name):
    tree = ast.parse(EVERY[name].to_code())
    found = {
        (each.module or "").split(".")[0] if isinstance(each, ast.ImportFrom) else alias.name
        for each in ast.walk(tree)
        if isinstance(each, (ast.Import, ast.ImportFrom))
        for alias in each.names
    }
    assert found - sys.stdlib_module_names <= {"keras", "numpy", "tensorflow"}


def test_the_code_is_formatted_and_without_findings(tmp_path):
    for number, recipe in enumerate(EVERY.values()):
        if "so so" not in recipe.augmentation:
            (tmp_path / f"train_{number}.py").write_text(recipe.to_code())
    rules = ["--isolated", "--line-length=100"]
    select = "--select=E,F,I,B,UP,D,SIM,RUF,N,C4"
    ignored = "--ignore=D203,D213,D401,D406,D407,D413,D416,D107,D105,D202,B905,RUF005,D400,D415"
    for command in (["check", *rules, select, ignored], ["format", "--check", *rules]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_one_name_stands_for_one_definition():
    # of all definitions together, so that no two parts can disagree
    parts = [write(recipe) for recipe in EVERY.values() for write in script.SCRIPT_PARTS.values()]
    wanted = [
        Definition("kbatch.script.fit", name) for name in ("built", "batches", *script.ALWAYS)
    ]
    wanted += [Definition("kbatch.script.fit", name) for name in ("photographs", "split")]
    wanted.append(Definition("kbatch.models.case_study", "small_resnet"))
    wanted.append(Definition("kbatch.data.drawn", "drawn_pets"))
    texts, _ = copied(dict.fromkeys([*together(parts).definitions, *wanted]))
    names = ["build_model", "load_data", "train"]
    for node in ast.parse("\n".join(texts)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets]
    assert len(names) == len(set(names)) > 80


def test_the_rate_of_a_growing_batch_follows_the_usual_rule():
    for optimizer in set(OPTIMIZERS) - {"compiled"}:
        code = Recipe(32, optimizer, 0.1, batch_schedule="linear:4").to_code()
        root = "(sizes[update] / 32) ** 0.5" in code
        assert root == (scaling.DEFAULT_LEARNING_RATE_RULES[optimizer] == "sqrt")


def test_a_definition_comes_after_what_it_uses():
    texts, imports = copied([Definition("kbatch.models.optimizers", "LARS")])
    assert [text.split("\n")[0].split("(")[0] for text in texts][:2] == [
        "TRUST = 0.001  # the coefficient of You et al. 2017",
        "def _norm",
    ]
    assert imports["ops"] == "from keras import ops"


def test_variables_of_a_function_are_no_names_of_its_module():
    # augmented_step has an argument `layers`, and its module a function of that name
    texts, _ = copied([Definition("kbatch.data.augmentation", "augmented_step")])
    assert not any(text.startswith("def layers") for text in texts)


def test_code_is_written_without_tensorflow():
    program = (
        "import sys, kbatch; kbatch.Recipe(training='sam:0.1').to_code(); "
        "print({'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
