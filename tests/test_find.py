"""The finder on real models under a hard memory limit: the answer trains, nonsense is refused, no worker is left."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, find_max_batch
from kbatch.errors import DataError, MemoryLimitError, ModelError
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import MaxBatch
from kbatch.memory._prober import Prober
from kbatch.memory._sample import sample_of
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

LIMIT = 120 << 20
RECIPE = Recipe(optimizer="sgd", learning_rate=0.1)
HERE = Path(__file__).parent


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def no_worker_is_left():
    before = workers()
    yield
    for _ in range(50):
        if workers() <= before:
            return
        time.sleep(0.1)
    raise AssertionError(f"left running: {workers() - before}")


def workers():
    """Processes of loky whose parent is this one."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if (
                int(parent) == os.getpid()
                and state != "Z"
                and "popen_loky" in (folder / "cmdline").read_text()
            ):
                found.add(folder.name)
    return found


def test_the_answer_trains_and_a_third_more_does_not_in_a_fresh_process():
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


def test_jitted_the_prediction_is_the_answer_and_the_second_call_comes_from_disk():
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


def test_a_model_that_needs_next_to_nothing_is_tried_where_speed_still_rises():
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
        confirmed_steps=5,
    )
    assert found.batch_size == 32
    assert found.recipe.accumulation_steps == 4


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


@pytest.mark.slow
def test_a_process_that_dies_counts_as_out_of_memory_because_a_smaller_batch_passes():
    found = find_max_batch(
        memory_models.DiesAbove(300), (16,), memory_limit="400MB", confirmed_steps=0
    )
    assert 280 <= found.batch_size <= 300
    assert {probe.ended for probe in found.probes} == {"passed", "died"}


def test_a_process_that_dies_at_batch_1_is_no_memory_problem():
    with pytest.raises(ModelError, match="one step on one example.*exit code -9"):
        find_max_batch(memory_models.DiesAbove(0), (16,), memory_limit="100MB", ceiling=2)


@pytest.mark.parametrize(
    ("build", "arguments", "kind", "says"),
    [
        (
            memory_models.wide_activations,
            {"x": (1000, 1), "memory_limit": "150MB"},
            MemoryLimitError,
            "One example must fit",
        ),
        (
            memory_models.huge,
            {"x": (16,), "memory_limit": "35MB"},
            MemoryLimitError,
            "memory limit. Received: 35.0 MB, in which they do not",
        ),
        (
            memory_models.raises,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "ZeroDivisionError: my own bug",
        ),
        (
            memory_models.nothing,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "must return a keras.Model. Received: NoneType",
        ),
        (memory_models.dies, {"x": (16,), "memory_limit": "100MB"}, ModelError, "exit code 7"),
        (
            memory_models.exits,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            r"exit code 3: sys.exit\(3\)",
        ),
        (
            memory_models.interrupts,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "KeyboardInterrupt",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "100KB"},
            MemoryLimitError,
            "at least 32 MiB",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "99999999999999GB"},
            MemoryLimitError,
            "at most what this machine has",
        ),
        (
            memory_models.dense,
            {"x": (17,), "memory_limit": "100MB"},
            DataError,
            r"shape of the model's input, \(16,\). Received: \(17,\)",
        ),
        (
            memory_models.uncompiled,
            {"x": (12,), "memory_limit": "100MB"},
            ModelError,
            "must have a loss",
        ),
        (
            memory_models.uncompiled,
            {
                "x": np.zeros((9, 12), "float32"),
                "y": np.zeros((9, 7)),
                "memory_limit": "100MB",
                "loss": "categorical_crossentropy",
            },
            ModelError,
            "must be made and train a step",
        ),
        (memory_models.dense, {"x": (16,)}, MemoryLimitError, "must have a memory limit"),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "100MB", "ceiling": 0},
            MemoryLimitError,
            "`ceiling` must be a whole number",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "much"},
            MemoryLimitError,
            "`memory_limit` must be bytes",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": -5},
            MemoryLimitError,
            "`memory_limit` must be bytes",
        ),
        (
            memory_models.dense,
            {"x": (0,), "memory_limit": "100MB"},
            DataError,
            "whole numbers of at least 1",
        ),
        (
            memory_models.dense,
            {"x": "16", "memory_limit": "100MB"},
            DataError,
            "Data must be arrays",
        ),
        (
            memory_models.dense,
            {"x": np.zeros((0, 16)), "y": np.zeros(0), "memory_limit": "100MB"},
            DataError,
            "at least 1",
        ),
        ("dense", {"x": (16,), "memory_limit": "100MB"}, ModelError, "`build` must be a function"),
    ],
)
def test_nonsense_is_one_clear_sentence(build, arguments, kind, says):
    with pytest.raises(kind, match=says) as error:
        find_max_batch(build, **arguments)
    assert str(error.value).count("Received: ") == 1


def test_a_probe_that_hangs_is_ended():
    with pytest.raises(ModelError, match="it hung"):
        find_max_batch(memory_models.hangs, (16,), memory_limit="100MB", timeout_seconds=8)


def test_ctrl_c_in_the_middle_leaves_no_worker():
    def interrupt(probe):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_max_batch(
            memory_models.uncompiled, (12,), memory_limit="100MB", loss="mse", on_probe=interrupt
        )


def test_a_function_of_a_notebook_travels():
    scope = {"__name__": "__main__"}
    exec(
        "def build(hp):\n    import keras\n    return keras.Sequential([keras.Input((12,)), keras.layers.Dense(UNITS)])\nUNITS = 3",
        scope,
    )
    assert (
        find_max_batch(
            scope["build"], (12,), memory_limit="100MB", loss="mse", ceiling=4, confirmed_steps=0
        ).batch_size
        == 4
    )


def digest(build, x, recipe, loss=None):
    with Prober(Workload(ModelSpec(build, loss), sample_of(*x)[0], recipe), 200 << 20) as prober:
        return prober.digest()


def test_an_answer_is_kept_under_the_traced_model_not_under_the_code_that_makes_it(monkeypatch):
    arguments = {"memory_limit": "200MB", "ceiling": 4, "recipe": RECIPE}
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
@pytest.mark.parametrize(
    ("build", "shape", "recipe"),
    [
        (memory_models.changing, (6, 4), Recipe(policy="mixed_float16", jit_compile=True)),
        (memory_models.deep, (32, 32, 3), Recipe(recompute="minimal")),
        (
            memory_models.normed,
            (24, 24, 3),
            Recipe(64, micro_batch_size=16, augmentation="flip_shift"),
        ),
    ],
)
def test_the_same_model_has_the_same_digest_in_every_process(build, shape, recipe):
    assert (
        digest(build, (shape,), recipe)
        == digest(build, (shape,), recipe)
        != digest(memory_models.uncompiled, ((12,),), RECIPE, "mse")
    )


def test_python_that_no_trace_shows_has_another_digest_each_time():
    import tensorflow as tf

    from kbatch.tracing.digest import digest as of_graph

    def traced(function):
        return tf.function(function).get_concrete_function(tf.TensorSpec((None, 3))).graph

    assert (
        of_graph(traced(lambda x: x + 1))
        == of_graph(traced(lambda y: y + 1))
        != of_graph(traced(lambda x: x + 2))
    )
    seen = traced(lambda x: tf.py_function(lambda y: y, [x], tf.float32))
    assert of_graph(seen) != of_graph(seen)


@pytest.mark.slow
def test_one_that_trains_but_cannot_be_validated_as_a_search_does_is_no_row_of_a_table():
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
        "    found = kbatch.find_max_batch(memory_models.uncompiled, (12,), memory_limit='100MB', loss='mse', ceiling=4, confirmed_steps=0)\n"
        "    print(found.batch_size, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert said.stdout == "4 False False\n", said.stderr


@pytest.mark.parametrize(
    ("build", "shape", "sizes"),
    [
        (memory_models.dense, (16,), (128, 512)),
        pytest.param(memory_models.recurrent, (50,), (256, 1024), marks=pytest.mark.slow),
    ],
)
def test_estimate_is_near_the_measured_peak_and_its_parts_add_up(build, shape, sizes):
    workload = Workload(
        ModelSpec(build),
        sample_of(
            np.zeros((8, *shape), "int32" if len(shape) == 1 else "float32"), np.zeros(8, "int32")
        )[0],
        Recipe(),
    )
    with Prober(workload, 1 << 30) as prober:
        facts, measured = prober.facts(), {size: prober.probe(size).peak_bytes for size in sizes}
    for size in sizes:
        guess = kbatch.memory.estimate(
            build, workload.sample[0], workload.sample[1], batch_size=size
        )
        assert (
            guess.total
            == guess.weights
            + guess.optimizer_slots
            + guess.gradients
            + guess.activations
            + guess.workspace
        )
        assert (guess.weights, guess.optimizer_slots) == (facts.weight_bytes, facts.slot_bytes)
        assert 0.6 * measured[size] <= guess.total <= 1.4 * measured[size], (
            build.__name__,
            size,
            guess,
            measured,
        )
        assert "activations" in str(guess)


@pytest.mark.slow
def test_the_jitted_estimate_is_what_xla_allocates():
    recipe, sample = Recipe(jit_compile=True), sample_of((16,))[0]
    guess = kbatch.memory.estimate(memory_models.dense, (16,), recipe=recipe, batch_size=256)
    with Prober(Workload(ModelSpec(memory_models.dense), sample, recipe), None) as prober:
        assert guess.total == pytest.approx(prober.compiled_bytes(256), rel=1e-6)
    assert (
        guess.total
        == guess.weights
        + guess.optimizer_slots
        + guess.gradients
        + guess.activations
        + guess.workspace
    )
    # two wide layers, of which XLA may keep one again
    assert guess.activations > 256 * 2 * memory_models.WIDTH * 4 / 2


@pytest.mark.slow
def test_a_dataset_with_weights_and_an_own_augmentation_reach_the_worker():
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


def test_throughput_rows_and_smallest_fast():
    speeds = kbatch.throughput(memory_models.normed, (24, 24, 3), batch_sizes=(4, 16, 64))
    assert [row.batch_size for row in speeds] == [4, 16, 64]
    assert all(
        row.examples_per_second == pytest.approx(row.batch_size / row.seconds_per_step)
        for row in speeds
    )
    assert 1 <= speeds.smallest_fast <= 64
    assert len(speeds.frame) == 3
    with pytest.raises(MemoryLimitError, match="batch_sizes"):
        kbatch.throughput(memory_models.normed, (24, 24, 3), batch_sizes=())
