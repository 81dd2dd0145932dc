"""The largest batch of real models, data of every form, and what is refused by name."""

import json
import subprocess
import sys
from pathlib import Path

import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, find_max_batch
from kbatch.errors import DataError, MemoryLimitError, ModelError
from kbatch.memory._estimate import UNSTEADY
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import MaxBatch
from kbatch.memory._prober import Prober
from kbatch.memory._search import traced_need
from kbatch.memory._workload import Workload, sample_of
from kbatch.model_spec import ModelSpec

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")


LIMIT = 120 << 20


RECIPE = Recipe(optimizer="sgd", learning_rate=0.1)


HERE = Path(__file__).parents[1] / "support"


def test_the_largest_batch_trains_and_a_third_more_does_not():
    found = find_max_batch(
        memory_models.dense,
        (16,),
        memory_limit=LIMIT,
        recipe=Recipe(optimizer="sgd", learning_rate=0.1),
    )
    assert found.confirmed_steps == len(found.confirmations[-1].step_seconds) == 20
    assert (found.confirmations[-1].batch_size, found.confirmations[-1].ended) == (
        found.batch_size,
        "passed",
    )
    assert found.limit_bytes == LIMIT
    # of that size
    assert (
        0
        < found.peak_bytes
        == found.confirmations[-1].peak_bytes
        <= (1 - MARGINS.kept_free) * LIMIT
    )
    assert str(found).startswith(f"batch {found.batch_size} uses ")
    workload = Workload(ModelSpec(memory_models.dense), sample_of((16,))[0], found.recipe)
    with Prober(workload, LIMIT) as prober:
        assert prober.train(found.batch_size, 20).passed  # with the whole limit
        assert prober.train(found.batch_size * 4 // 3, 20).ended == "out_of_memory"


def test_memory_that_is_taken_leaves_less_for_a_batch():
    workload = Workload(ModelSpec(memory_models.dense), sample_of((16,))[0], RECIPE)
    with Prober(workload, LIMIT) as prober:
        size = traced_need(prober.moments(), prober.facts()).largest(LIMIT / 2)
        alone = prober._ask("confirm_spared", size, 1, size, 0)
        beside = prober._ask("confirm_spared", size, 1, size, LIMIT // 10)
    assert (alone.ended, beside.ended) == ("passed", "passed")
    with Prober(workload, LIMIT) as prober:
        crowded = prober._ask("confirm_spared", size, 1, size, LIMIT * 7 // 10)
    assert crowded.ended == "out_of_memory"
    assert crowded.peak_bytes > 0  # of its step: what was taken found room
    assert beside.peak_bytes == pytest.approx(alone.peak_bytes, rel=0.1)  # what is taken is not its


@pytest.mark.slow  # TensorFlow waits for memory before it fails
def test_memory_that_cannot_be_taken_is_no_error_of_the_model():
    workload = Workload(ModelSpec(memory_models.dense), sample_of((16,))[0], RECIPE)
    with Prober(workload, LIMIT) as prober:
        prober.facts()
        assert prober._ask("confirm_spared", 1, 1, 1, 2 * LIMIT).ended == "out_of_memory"


@pytest.mark.slow
def test_jitted_the_prediction_is_the_answer_and_it_is_cached():
    arguments = {"memory_limit": LIMIT, "recipe": Recipe(jit_compile=True), "confirmed_steps": 2}
    found = find_max_batch(memory_models.dense, (16,), **arguments)
    assert abs(found.predicted - found.batch_size) <= 1
    assert found.peak_bytes <= (1 - MARGINS.kept_free) * LIMIT
    tried = []
    again = find_max_batch(memory_models.dense, (16,), **arguments, on_probe=tried.append)
    assert again == found
    assert not tried
    assert MaxBatch.from_json(found.to_json()) == found
    with Prober(
        Workload(ModelSpec(memory_models.dense), sample_of((16,))[0], found.recipe), LIMIT
    ) as prober:
        # where a little is kept back
        assert prober.confirm(found.batch_size + 2, 2).ended == "out_of_memory"


def test_a_tiny_model_is_tried_while_speed_still_rises():
    found = find_max_batch(
        memory_models.uncompiled,
        (12,),
        memory_limit="300MB",
        loss="sparse_categorical_crossentropy",
        confirmed_steps=1,
    )
    assert max(probe.batch_size for probe in found.probes) < found.predicted / 2
    assert (found.batch_size, found.first_failing) == (found.no_faster_from, None)
    assert "larger ones are no faster" in str(found)


def test_sizes_on_request_and_accumulation():
    found = find_max_batch(
        memory_models.normed,
        (24, 24, 3),
        memory_limit="200MB",
        ceiling=50,
        sizes="powers_of_two",
        recipe=Recipe(64, micro_batch_size=16),
        confirmed_steps=1,
    )
    assert found.batch_size == 32
    assert found.recipe.accumulation_steps == 4


@pytest.mark.parametrize("model", ["listed", "from_the_inputs_of_another"])
def test_inputs_and_outputs_in_lists_are_taken_as_fit_takes_them(model):
    build = getattr(memory_models, model)
    found = find_max_batch(build, recipe=RECIPE, memory_limit=LIMIT, ceiling=8)
    assert found.batch_size == 8
    assert found.at_ceiling


@pytest.mark.slow
def test_a_process_that_dies_at_a_large_batch_is_out_of_memory():
    found = find_max_batch(
        memory_models.DiesAbove(300), (16,), memory_limit="400MB", confirmed_steps=0
    )
    assert 280 <= found.batch_size <= 300
    assert {probe.ended for probe in found.probes} == {"passed", "died"}


def test_ctrl_c_in_the_middle_leaves_no_worker():
    def interrupt(probe):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_max_batch(
            memory_models.uncompiled, (12,), memory_limit="100MB", loss="mse", on_probe=interrupt
        )


def test_an_answer_is_kept_under_the_traced_model_not_its_code(monkeypatch):
    arguments = {"memory_limit": "200MB", "ceiling": 4, "recipe": RECIPE, "confirmed_steps": 0}
    tried = []
    found = find_max_batch(memory_models.changing, (6, 4), **arguments)
    assert (
        find_max_batch(
            lambda hp: memory_models.changing(), (6, 4), **arguments, on_probe=tried.append
        )
        == found
    )
    assert not tried  # other code, the same model, in another process
    monkeypatch.setenv("KBATCH_TEST_WIDTH", "16")
    assert (
        find_max_batch(
            memory_models.changing, (6, 4), **arguments, on_probe=tried.append
        ).batch_size
        == 4
    )
    assert tried  # the same code, another model


@pytest.mark.slow
def test_a_size_that_cannot_be_validated_is_no_row_of_a_table():
    assert (
        find_max_batch(
            memory_models.few_activations,
            (1000, 1),
            memory_limit="200MB",
            ceiling=1,
            confirmed_steps=1,
        ).batch_size
        == 1
    )
    with pytest.raises(MemoryLimitError, match="validation batch of 32"):
        kbatch.max_batches(
            memory_models.few_activations,
            (1000, 1),
            None,
            kbatch.Space(optimizer="sgd", policy="float32"),
            "200MB",
            ceiling=1,
        )


def test_float16_with_accumulation_reaches_an_update():
    recipe = Recipe(64, micro_batch_size=4, policy="mixed_float16")
    found = find_max_batch(
        memory_models.normed,
        (24, 24, 3),
        memory_limit="300MB",
        ceiling=4,
        confirmed_steps=0,
        recipe=recipe,
    )
    assert (found.batch_size, found.recipe.accumulation_steps) == (4, 16)


def test_the_parent_imports_no_tensorflow():
    code = (
        "import sys, memory_models, kbatch\n"
        "if __name__ == '__main__':\n"
        "    found = kbatch.find_max_batch(memory_models.uncompiled, (12,), "
        "memory_limit='100MB', loss='mse', ceiling=4, confirmed_steps=0)\n"
        "    print(found.batch_size, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert said.stdout == "4 False False\n", said.stderr


def test_throughput_rows_and_smallest_fast():
    probes = []
    speeds = kbatch.throughput(
        memory_models.normed, (24, 24, 3), batch_sizes=(16, 4, 64), on_probe=probes.append
    )
    assert [row.batch_size for row in speeds] == [4, 16, 64]
    for row, probe in zip(speeds, probes, strict=True):
        steady = np.median(probe.step_seconds[UNSTEADY:])
        assert (row.batch_size, row.peak_bytes) == (probe.batch_size, probe.peak_bytes)
        assert row.examples_per_second == pytest.approx(row.batch_size / steady)
    best = max(row.examples_per_second for row in speeds)
    fast = [row.batch_size for row in speeds if row.examples_per_second >= 0.95 * best]
    assert speeds.smallest_fast <= min(fast)
    assert speeds.first_failing is None
    assert speeds.frame.batch_size.tolist() == [4, 16, 64]
    with pytest.raises(MemoryLimitError, match="batch_sizes"):
        kbatch.throughput(memory_models.normed, (24, 24, 3), batch_sizes=())


def test_a_process_that_dies_at_batch_1_is_no_memory_problem():
    with pytest.raises(ModelError, match="one step on one example.*exit code -9"):
        find_max_batch(memory_models.DiesAbove(0), (16,), memory_limit="100MB", ceiling=2)


NONSENSE = [
    (
        memory_models.wide_activations,
        {"x": (1000, 1), "memory_limit": "150MB"},
        MemoryLimitError,
        "One example must fit",
    ),
    (
        memory_models.huge,
        {"memory_limit": "35MB"},
        MemoryLimitError,
        "memory limit. Received: 35.0 MB, in which they do not",
    ),
    (memory_models.raises, {}, ModelError, "ZeroDivisionError: my own bug"),
    (memory_models.nothing, {}, ModelError, "must return a keras.Model. Received: NoneType"),
    (memory_models.dies, {}, ModelError, "exit code 7"),
    (memory_models.exits, {}, ModelError, r"exit code 3: sys.exit\(3\)"),
    (memory_models.interrupts, {}, ModelError, "KeyboardInterrupt"),
    (memory_models.dense, {"memory_limit": "100KB"}, MemoryLimitError, "at least 32 MiB"),
    (
        memory_models.dense,
        {"x": (17,)},
        DataError,
        r"shape of the model's input, \(16,\). Received: \(17,\)",
    ),
    (memory_models.uncompiled, {"x": (12,)}, ModelError, "must have a loss"),
    (
        memory_models.uncompiled,
        {
            "x": np.zeros((9, 12), "float32"),
            "y": np.zeros((9, 7)),
            "loss": "categorical_crossentropy",
        },
        ModelError,
        "must be made and train a step",
    ),
    (
        memory_models.dense,
        {"memory_limit": None},
        MemoryLimitError,
        "must have a memory limit",
    ),
    (
        memory_models.dense,
        {"ceiling": 0},
        MemoryLimitError,
        "`ceiling` must be a whole number",
    ),
    (memory_models.dense, {"x": (0,)}, DataError, "whole numbers of at least 1"),
    (memory_models.dense, {"x": "16"}, DataError, "Data must be arrays"),
    (memory_models.dense, {"x": np.zeros((0, 16)), "y": np.zeros(0)}, DataError, "at least 1"),
    ("dense", {}, ModelError, "`build` must be a function"),
]


@pytest.mark.parametrize(
    ("build", "changes", "kind", "says"), NONSENSE, ids=[row[-1] for row in NONSENSE]
)
def test_nonsense_is_one_clear_sentence(build, changes, kind, says):
    with pytest.raises(kind, match=says) as error:
        find_max_batch(build, **{"x": (16,), "memory_limit": "100MB", **changes})
    assert str(error.value).count("Received: ") == 1


def test_a_probe_that_hangs_is_ended():
    with pytest.raises(ModelError, match="it hung"):
        find_max_batch(memory_models.hangs, (16,), memory_limit="100MB", timeout_seconds=2)


def test_data_set_a_ceiling_and_labels_are_taken_as_they_are():
    x, y = np.zeros((40, 12), "float32"), np.zeros(40, "int32")
    found = find_max_batch(
        memory_models.uncompiled,
        x,
        y,
        memory_limit="200MB",
        loss="sparse_categorical_crossentropy",
        confirmed_steps=0,
    )
    assert (found.batch_size, found.ceiling, found.first_failing) == (40, 40, None)
    assert "40 is the ceiling" in str(found)
    assert json.loads(found.to_json())["recipe"]["optimizer"] == "adam"


def test_lists_and_batched_datasets_are_taken_as_they_are():
    import tensorflow as tf

    x, y = (
        [np.zeros((9, 8), "float32"), np.zeros((9, 4), "float32")],
        [np.zeros(9, "int32"), np.zeros((9, 1), "float32")],
    )
    assert (
        find_max_batch(
            memory_models.listed, x, y, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )
    batches = (
        tf.data.Dataset.from_tensor_slices((tuple(x), tuple(y))).shuffle(9).batch(4).prefetch(1)
    )
    assert (
        find_max_batch(
            memory_models.listed, batches, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )


def test_dicts_of_inputs_and_outputs():
    x = {"a": np.zeros((9, 8), "float32"), "b": np.zeros((9, 4, 4, 1), "float32")}
    y = {"kind": np.zeros(9, "int32"), "size": np.zeros((9, 1), "float32")}
    assert (
        find_max_batch(
            memory_models.two_outputs, x, y, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )
    shapes = {"a": (8,), "b": (4, 4, 1)}
    assert (
        find_max_batch(
            memory_models.two_outputs, shapes, memory_limit="200MB", ceiling=20, confirmed_steps=0
        ).batch_size
        == 20
    )


def test_a_function_of_a_notebook_travels():
    scope = {"__name__": "__main__"}
    exec(
        (
            "def build(hp):\n    import keras\n"
            "    return keras.Sequential([keras.Input((12,)), "
            "keras.layers.Dense(UNITS)])\nUNITS = 3"
        ),
        scope,
    )
    assert (
        find_max_batch(
            scope["build"], (12,), memory_limit="100MB", loss="mse", ceiling=4, confirmed_steps=0
        ).batch_size
        == 4
    )


def test_a_sequential_model_without_input_is_called_first():
    import keras

    def build():
        return keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])

    assert (
        find_max_batch(
            build, (12,), memory_limit="100MB", loss="mse", ceiling=4, confirmed_steps=0
        ).batch_size
        == 4
    )


@pytest.mark.slow
def test_weighted_data_and_own_augmentation_reach_the_worker():
    import keras
    import tensorflow as tf

    kbatch.register_augmentation("own_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    arrays = np.zeros((64, 24, 24, 3), "float32"), np.zeros(64, "int32"), np.ones(64, "float32")
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, augmentation="own_noise")
    found = find_max_batch(
        memory_models.normed,
        tf.data.Dataset.from_tensor_slices(arrays),
        memory_limit="500MB",
        recipe=recipe,
        confirmed_steps=2,
    )
    assert (found.batch_size, found.ceiling, found.at_ceiling) == (64, 64, True)
