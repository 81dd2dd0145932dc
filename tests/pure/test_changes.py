"""The changes of a script's own lines that a recipe asks for."""

import ast

import pytest

from kbatch.recipe import Recipe
from kbatch.standin.changes import changes_of

TODAY = Recipe(optimizer="compiled", learning_rate=None)
SGD = Recipe(batch_size=128, optimizer="sgd", learning_rate=0.04, momentum=0.9)
COMPILED_128 = Recipe(batch_size=128, optimizer="compiled", learning_rate=None)

ARRAYS = """\
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, epochs=3)
"""
NAMED = ARRAYS.replace("epochs=3", "batch_size=SIZE").replace("model =", "SIZE = 32\nmodel =", 1)
DATASET = """\
import tensorflow as tf
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
other = tf.data.Dataset.range(10).batch(7)
model.compile(optimizer=opt, loss="mse", jit_compile=False)
model.fit(train)
"""


def added(changes):
    lines = changes.diff.splitlines()
    return [each[1:] for each in lines if each.startswith("+") and not each.startswith("+++")]


@pytest.mark.parametrize(
    ("source", "recipe", "lines"),
    [
        (ARRAYS, COMPILED_128, ["model.fit(x, y, epochs=3, batch_size=128)"]),
        (NAMED, COMPILED_128, ["SIZE = 128"]),
        (
            DATASET,
            COMPILED_128,
            [
                "train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(128)",
            ],
        ),
        (
            ARRAYS,
            SGD,
            [
                'model.compile(keras.optimizers.SGD(learning_rate=0.04, momentum=0.9), "mse")',
                "model.fit(x, y, epochs=3, batch_size=128)",
            ],
        ),
        (
            DATASET,
            Recipe(optimizer="adam", learning_rate=0.01, jit_compile=True),
            [
                "model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate=0.01, "
                'beta_1=0.9), loss="mse", jit_compile=True)'
            ],
        ),
    ],
)
def test_the_lines_of_a_script_change(source, recipe, lines):
    line = source.splitlines().index(next(e for e in source.splitlines() if ".fit(" in e)) + 1
    changes = changes_of(source, "train.py", line, TODAY, recipe, ".batch(" in source)
    assert added(changes) == lines
    assert changes.others == ()


def test_warm_up_is_a_schedule_of_keras():
    changes = changes_of(
        ARRAYS, "t.py", 4, TODAY, Recipe(optimizer="sgd", learning_rate=0.2, warmup_updates=9)
    )
    assert "warmup_target=0.2, warmup_steps=9" in changes.diff


def test_the_policy_is_set_behind_the_imports():
    recipe = Recipe(optimizer="compiled", learning_rate=None, policy="mixed_float16")
    changes = changes_of(ARRAYS, "t.py", 4, TODAY, recipe)
    assert added(changes) == ['keras.config.set_dtype_policy("mixed_float16")']


def test_what_no_line_holds_is_said():
    recipe = Recipe(optimizer="compiled", learning_rate=None, augmentation="flip")
    changes = changes_of(ARRAYS, "t.py", 4, TODAY, recipe)
    assert changes.diff == ""
    assert "augmentation='flip'" in changes.others[0]


def test_passes_of_a_micro_batch_are_accumulated():
    recipe = Recipe(128, "sgd", 0.04, micro_batch_size=32)
    assert "gradient_accumulation_steps=4" in changes_of(ARRAYS, "t.py", 4, TODAY, recipe).diff


def test_nothing_is_changed_for_todays_recipe():
    assert "Nothing" in str(changes_of(ARRAYS, "t.py", 4, TODAY, TODAY))


def test_a_cell_that_is_no_python_gets_words():
    changes = changes_of("%matplotlib inline\n" + ARRAYS, "cell", 5, TODAY, SGD)
    assert changes.diff == ""
    assert "128" in changes.others[0]


def test_a_changed_script_is_python_still():
    source = ARRAYS.replace("epochs=3)", "epochs=3,  # schöne Zahl\n)")
    changes = changes_of(source, "t.py", 4, TODAY, SGD)
    assert "batch_size=128" in changes.diff
    ast.parse(source)


def lines_of(source, recipe, gets_batches=False):
    line = next(n for n, each in enumerate(source.splitlines(), 1) if ".fit(" in each)
    return added(changes_of(source, "t.py", line, TODAY, recipe, gets_batches))


def test_keras_is_imported_where_a_script_does_not_name_it():
    source = ARRAYS.replace("import keras", "from keras.models import Sequential")
    source = source.replace("keras.Sequential([keras.layers", "Sequential([layers")
    assert "import keras" in lines_of(source, SGD)


def test_only_the_batches_of_fit_change():
    source = ARRAYS + "model.evaluate(x, y, batch_size=32)\n"
    assert lines_of(source, COMPILED_128) == ["model.fit(x, y, epochs=3, batch_size=128)"]


def test_only_the_model_of_fit_is_compiled_anew():
    source = "import re\nword = re.compile('a')\nother.compile('sgd', 'mse')\n" + ARRAYS
    source = source.replace("model.fit", "other.compile('sgd', 'mae')\nmodel.fit")
    changed = lines_of(source, SGD)
    assert [each.split("(")[0] for each in changed] == ["model.compile", "model.fit"]


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("model.fit(x, y, 32, 3)", "model.fit(x, y, 128, 3)"),
        ("model.fit(x, (y))", "model.fit(x, (y), batch_size=128)"),
        ("model.fit(x, y,)", "model.fit(x, y,batch_size=128)"),
    ],
)
def test_calls_in_other_forms_change(call, changed):
    assert lines_of(ARRAYS.replace("model.fit(x, y, epochs=3)", call), COMPILED_128) == [changed]


def test_data_that_batch_by_themselves_get_words():
    changes = changes_of(ARRAYS, "t.py", 4, TODAY, COMPILED_128, gets_batches=True)
    assert (changes.diff, changes.others) == (
        "",
        ("Let the data give batches of 128 instead of 32.",),
    )


def test_a_late_import_does_not_move_the_policy():
    recipe = Recipe(optimizer="compiled", learning_rate=None, policy="mixed_float16")
    changes = changes_of(ARRAYS + "import matplotlib\n", "t.py", 4, TODAY, recipe)
    first = [each for each in changes.diff.splitlines() if not each.startswith(("-", "@"))]
    assert first[2] == '+keras.config.set_dtype_policy("mixed_float16")'


def test_an_optimizer_that_keras_lacks_is_said_in_words():
    recipe = Recipe(32, "lars", 1.0)
    changes = changes_of(ARRAYS, "t.py", 4, TODAY, recipe)
    assert changes.diff == ""
    assert changes.others[0].startswith("Compile with optimizer=LARS(")
