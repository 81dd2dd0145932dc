"""The table against single finders, and a search that it keeps from running out of memory."""

from pathlib import Path

import keras_tuner
import memory_models
import pytest
from typer.testing import CliRunner

import kbatch
from kbatch import HyperModel, Recipe, Space, find_max_batch, max_batches
from kbatch.cli.app import app
from kbatch.errors import MemoryLimitError, ProjectChangedError, SearchError
from kbatch.memory._max_batch import Row, Table
from kbatch.records.project import Project
from kbatch.records.store import Store
from kbatch.space import Combination

HERE = Path(__file__).parents[1] / "support"
LIMIT = 120 << 20


pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers")


def compare(space, most_probes):
    rows = []
    table = max_batches(
        memory_models.dense, (16,), space=space, memory_limit=LIMIT, on_row=rows.append
    )
    assert table.executed_probes <= most_probes
    executed = 0
    assert sorted(map(str, rows)) == sorted(map(str, table))
    for row in table:
        recipe = Recipe(optimizer=row.optimizer, policy=row.policy, jit_compile=row.jit_compile)
        single = find_max_batch(memory_models.dense, (16,), recipe=recipe, memory_limit=LIMIT)
        executed += len(single.probes) + len(single.confirmations)
        assert row.batch_size == pytest.approx(
            single.batch_size, rel=0.02 if row.jit_compile else 0.1
        )
        assert 0 < row.accumulated_batch_size <= row.batch_size
        assert row.confirmed_steps >= 20
    assert table.executed_probes < executed
    return table


@pytest.mark.slow
def test_two_optimizers_cost_at_most_six_probes_then_none():
    table = compare(Space(policy="float32"), most_probes=6)
    tried = []
    assert (
        max_batches(
            memory_models.dense,
            (16,),
            space=Space(policy="float32"),
            memory_limit=LIMIT,
            on_probe=tried.append,
        )
        == table
    )
    assert not tried


@pytest.mark.slow
def test_eight_combinations_cost_at_most_twenty_probes():
    table = compare(
        Space(policy=("float32", "mixed_bfloat16"), jit_compile=(False, True)), most_probes=20
    )
    assert len(table) == 8


@pytest.mark.slow
def test_the_heaviest_augmentation_and_a_ceiling_are_measured():
    space = Space(optimizer="sgd", policy="float32", augmentation=("none", "flip_shift", "flip"))
    table = max_batches(
        memory_models.normed, (24, 24, 3), space=space, memory_limit="300MB", ceiling=8
    )
    assert table.augmentation == "flip_shift"
    assert [row.batch_size for row in table] == [8]


def test_nothing_fits_or_nothing_is_known():
    with pytest.raises(MemoryLimitError, match="some recipe of the space"):
        max_batches(
            memory_models.starving,
            (16,),
            space=Space(optimizer="sgd", policy="float32"),
            memory_limit="150MB",
            ceiling=1,
        )
    with pytest.raises(MemoryLimitError, match="must have a memory limit"):
        max_batches(memory_models.dense, (16,), space=Space(optimizer="sgd", policy="float32"))


def table_of(batch_size):
    row = Row(Combination("float32", "sgd", False), batch_size, 32, 10**6, 70, 20)
    return Table((row,), 10**8, "none", 3, 0, 1.0)


def hypermodel_of(raw, max_batch):
    space = Space(
        optimizer="sgd", policy="float32", batch_size=(16, 64, 512), learning_rate={"sgd": 0.01}
    )
    return HyperModel(
        raw,
        space,
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seconds_per_trial=0.2,
        max_batch=max_batch,
    )


def search(directory, max_batch, points, raw):
    (x, y), validation = points
    tuner = keras_tuner.GridSearch(
        hypermodel_of(raw, max_batch),
        kbatch.objective(),
        max_trials=3,
        directory=str(directory),
        project_name="p",
    )
    tuner.search(x, y, validation_data=validation, verbose=0)
    return {
        record.recipe.batch_size: record
        for record in Store(directory / "p" / "kbatch").records()
        if record.purpose == "search"
    }


def test_a_number_makes_large_batches_accumulate(tmp_path, points, raw):
    records = search(tmp_path, 16, points, raw)
    assert {size: record.recipe.accumulation_steps for size, record in records.items()} == {
        16: 1,
        64: 4,
        512: 1,
    }
    assert records[64].outcome.ended == "horizon"
    assert records[512].outcome.ended == "out_of_memory"
    assert "not trained" in records[512].outcome.message
    assert records[512].outcome.updates == 0
    assert records[512].score == 0


def test_a_table_is_kept_with_the_project_and_another_is_refused(tmp_path, points, raw):
    table = table_of(64)
    records = search(tmp_path, table, points, raw)
    assert {size: record.recipe.accumulation_steps for size, record in records.items()} == {
        16: 1,
        64: 1,
        512: 16,
    }
    project = Project(tmp_path / "p")
    assert Table.from_dict(project.facts()["table"]) == table
    other = table_of(60)
    assert max_batches(raw, (4,), project=tmp_path / "p") == table  # nothing is measured again
    hypermodel = hypermodel_of(raw, other)
    (x, y), validation = points
    with pytest.raises(
        ProjectChangedError,
        match=r"max_batch.sgd, float32, jit False was \[64, 32\] and is now \[60, 32\]",
    ):
        hypermodel.terms.open(project, (x, y), {"validation_data": validation})


def test_a_table_of_another_space_is_refused(raw):
    table = table_of(64)
    with pytest.raises(SearchError, match="adam"):
        HyperModel(raw, Space(policy="float32"), loss="mse", seconds_per_trial=1, max_batch=table)


@pytest.mark.slow
def test_the_driver_makes_the_table_first_and_resumes_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "300")
    command = [
        "cats-vs-dogs",
        "--out",
        str(tmp_path / "out"),
        "--trials",
        "1",
        "--seconds-per-trial",
        "0.3",
        "--confirm",
        "0",
        "--image-size",
        "16",
        "--optimizers",
        "sgd",
        "--policies",
        "float32",
        "--batch-sizes",
        "16,64",
    ]
    first = CliRunner().invoke(app, command)  # in this process, so that its workers are forked
    assert first.exit_code == 0, first.stderr
    assert "largest batch" in first.stdout
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "empty"))
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.stderr
    assert "largest batch" not in again.stdout
    assert not (tmp_path / "empty").exists()
