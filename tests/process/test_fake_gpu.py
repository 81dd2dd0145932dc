"""A fake GPU: what it says, and what kbatch does only where there is a GPU."""

import subprocess
import sys
from pathlib import Path

import forked
import memory_models
import pytest

import kbatch
from kbatch import Recipe, Space, find_max_batch, max_batches
from kbatch.results.loading import load_records

CODE = """
import tensorflow as tf
from kbatch.runtime import device_memory
limit = device_memory.apply_limit({limit})
print(len(tf.config.list_physical_devices("GPU")), limit, device_memory.device())
"""


def test_a_forked_and_a_started_process_have_it(fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "2")
    code = CODE.format(limit=100 << 20)
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert started.stdout == forked.code(code).stdout == f"2 {100 << 20} GPU:0\n", started.stderr


def test_without_a_limit_it_has_what_the_card_has(fake_gpu, monkeypatch):
    code = CODE.format(limit=None)
    assert forked.code(code).stdout == f"1 {400 << 20} GPU:0\n"
    monkeypatch.delenv("FAKE_GPU")
    assert forked.code(code).stdout == "0 None CPU:0\n"


SGD = Recipe(optimizer="sgd", learning_rate=0.1)
LIMIT = 120 << 20


@pytest.fixture
def on_fake_gpu(fake_gpu, own_cache, forked_workers):
    """Workers that say that they have a GPU."""


@pytest.mark.slow
def test_a_size_that_fails_for_another_reason_bounds_the_answer(on_fake_gpu):
    found = find_max_batch(memory_models.refusing, (16,), recipe=SGD, memory_limit=LIMIT)
    assert 170 <= found.batch_size < found.first_failing <= 210
    assert "int32 max" in found.why_failing
    assert f"{found.first_failing} fails with an error that does not name memory: " in str(found)


@pytest.mark.slow
def test_scratch_of_the_first_step_is_no_need(on_fake_gpu):
    def found(build):
        return find_max_batch(build, (16,), recipe=SGD, memory_limit=LIMIT)

    without, tried = found(memory_models.dense), found(memory_models.trying)
    assert 0.9 * without.batch_size <= tried.batch_size
    first = tried.probes[0]
    assert first.first_peak_bytes > first.peak_bytes + 15_000_000


SUPPORT = str(Path(__file__).parents[1] / "support")  # what other processes import
TRAINED = """
import sys
sys.path.insert(0, {tests!r})
import keras, memory_models, numpy as np
import kbatch
from kbatch.runtime import device_memory
device_memory.apply_limit(200 << 20)
x = np.random.default_rng(0).normal(size=(600, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
def build():
    model = memory_models.trying()
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model
recipe = kbatch.Recipe(16, "sgd", 0.1)
_, outcome = kbatch.train(recipe, build, x, y, (x[:50], y[:50]), epochs=1)
print(outcome.peak_bytes, outcome.first_update_peak_bytes, outcome.utilisation)
assert kbatch.Outcome.from_dict(outcome.to_dict()) == outcome
"""


def test_a_training_keeps_the_peak_of_its_first_update_apart(fake_gpu):
    said = forked.code(TRAINED.format(tests=SUPPORT))
    peak, first, load = said.stdout.split()
    assert int(first) > int(peak) + 15_000_000, said.stderr
    assert load == "{}"


SEARCHED = """
import sys
sys.path.insert(0, {tests!r})
import keras, keras_tuner, numpy as np
import kbatch
from short_searches import search, tuner_of
from kbatch.results.loading import load_records

def dense(hp=None, jit=True):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.layers[0].supports_jit = jit
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model

def not_compiled(hp=None):
    return dense(jit=False)

x = np.random.default_rng(0).normal(size=(600, 12)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
space = kbatch.Space(optimizer="sgd", learning_rate={{"sgd": 0.1}}, policy="float32", batch_size=64)
made = tuner_of({folder!r}, keras_tuner.GridSearch, model=dense, space=space, max_trials=2)
search(made, ((x, y), (x[:100], y[:100])))
records = load_records({folder!r} + "/p")
print([record.recipe.jit_compile for record in records], {{record.device for record in records}})
other = tuner_of({folder!r} + "2", keras_tuner.GridSearch, model=not_compiled, space=space)
print(other.hypermodel.space.jit_compile)
"""


@pytest.mark.slow
def test_what_the_baseline_does_with_xla_is_searched(fake_gpu, tmp_path):
    code = SEARCHED.format(tests=SUPPORT, folder=str(tmp_path / "s"))
    said = forked.code(code)
    jitted, plain = said.stdout.splitlines()[-2:]
    values, device = jitted.split(" {")
    assert sorted(eval(values)[1:]) == [False, True], said.stderr
    assert eval(values)[0] is True  # Keras' own default on a GPU
    assert device == "'FAKE GPU'}"
    assert plain == "(False,)"


def test_on_a_cpu_nothing_is_compiled_by_default():
    assert Space().compilations == (False,)
    assert Space().to_dict()["jit_compile"] == (False,)
    assert Space(jit_compile=True).compilations == (True,)


@pytest.mark.slow
def test_a_default_table_has_rows_with_xla_where_it_compiles(on_fake_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_GPUS", "2")
    monkeypatch.setenv("FAKE_GPU_LOG", str(tmp_path / "log"))
    monkeypatch.setattr("kbatch.runtime.device.compilations", lambda: (False, True))
    space = Space(optimizer="sgd", policy="float32")
    found = [
        max_batches(build, (16,), space=space, memory_limit=LIMIT, ceiling=16)
        for build in (memory_models.dense, memory_models.not_compiled)
    ]
    assert [[row.jit_compile for row in table] for table in found] == [[False, True], [False]]
    for table in found:
        kbatch.HyperModel(memory_models.dense, space, seconds_per_trial=1, max_batch=table)
    # every worker leaves the second card alone
    assert set((tmp_path / "log").read_text().splitlines()) == {"1 of 2 visible"}


@pytest.mark.slow
def test_xlas_answer_is_confirmed_in_three_processes(on_fake_gpu):
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, jit_compile=True)
    tried = []
    found = find_max_batch(
        memory_models.dense,
        (16,),
        recipe=recipe,
        memory_limit=LIMIT,
        ceiling=64,
        confirmed_steps=2,
        on_probe=tried.append,
    )
    assert [(probe.batch_size, probe.ended) for probe in tried] == 3 * [(64, "passed")]
    assert found.batch_size == 64
    assert (len(found.confirmations), found.confirmed_steps) == (3, 6)


def test_an_estimate_is_made_on_a_gpu(on_fake_gpu):
    found = kbatch.memory.estimate(memory_models.dense, (16,), recipe=SGD)
    assert found.total > found.weights > 0


def test_the_doctor_names_the_gpu_and_its_limit(fake_gpu):
    said = forked.command("doctor")
    lines = dict(line.split("  ", 1) for line in said.stdout.splitlines() if "  " in line)
    assert lines["gpu"].strip() == "FAKE GPU"
    assert lines["memory limit"].strip() == "419 MB"


def test_the_driver_searches_on_a_gpu(fake_gpu, tmp_path):
    small = "--image-size 16 --trials 1 --seconds-per-trial 0.3 --confirm 0 --max-batch off"
    axes = "--model cnn --policies float32 --jit both --batch-sizes 32"
    said = forked.command(
        "cats-vs-dogs", *small.split(), *axes.split(), "--out", str(tmp_path / "out")
    )
    assert said.returncode == 0, said.stderr
    assert "device: FAKE GPU" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_isolated_trials_leave_the_gpu_to_their_worker(fake_gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_GPU_LOG", str(tmp_path / "log"))
    small = "--image-size 16 --trials 1 --seconds-per-trial 0.3 --confirm 0 --max-batch off"
    axes = "--model cnn --policies float32 --jit off --batch-sizes 32 --isolated"
    command = [sys.executable, "-m", "kbatch", "cats-vs-dogs", *small.split(), *axes.split()]
    command += ["--out", str(tmp_path / "out")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "device: FAKE GPU" in (tmp_path / "out" / "report.md").read_text()
    devices = {record.device for record in load_records(tmp_path / "out")}
    assert devices == {"FAKE GPU"}
    assert (tmp_path / "log").read_text().splitlines() == ["0 of 1 visible"]  # in the parent


HELD = """
import tensorflow as tf
from kbatch import HyperModel
tf.config.list_logical_devices("GPU")
try:
    HyperModel(lambda: None, isolated=True, seconds_per_trial=1)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_gpu_that_is_held_already_is_no_workers(fake_gpu):
    said = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, check=False
    ).stdout
    assert said.startswith("SearchError Isolated trials must come before anything else uses")
