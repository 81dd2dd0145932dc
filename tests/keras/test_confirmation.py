"""Confirmations of a real search: which recipes are trained again, and on what."""

import shutil

import numpy as np
import pytest
from short_searches import confirm, search_again

import kbatch
from kbatch.results.loading import load_records


def test_a_confirmation_trains_with_fresh_seeds_and_resumes(confirmed, points, tmp_path):
    directory = shutil.copytree(confirmed, tmp_path, dirs_exist_ok=True)
    tuner = search_again(directory)
    (x, y), validation = points
    data = {"validation_data": validation, "test_data": validation, "verbose": 0}
    both = confirm(directory, points)
    assert len(both) == 3
    assert both.baseline.sum() == 1
    runs = kbatch.confirm(tuner, x, y, top=1, seeds=2, **data)
    assert len(runs) == 4
    assert runs.groupby("seed").size().tolist() == [2, 2]
    assert runs.baseline.sum() == 2
    assert not set(runs.seed) & {0}
    assert set(runs.score[runs.seed == 1]) <= set(both.score)
    for table in (both, runs):
        np.testing.assert_allclose(table.test_accuracy, table.val_accuracy, atol=1e-7)
    size = (directory / "p" / "kbatch" / "records.jsonl").stat().st_size
    again = kbatch.confirm(tuner, x, y, top=1, seeds=2, **data)
    assert again.score.tolist() == runs.score.tolist()
    assert (directory / "p" / "kbatch" / "records.jsonl").stat().st_size == size
    with pytest.raises(kbatch.errors.ProjectChangedError, match="values or order of test_data"):
        kbatch.confirm(tuner, x, y, top=1, seeds=3, **data | {"test_data": (x, y)})


def test_trials_that_failed_are_not_confirmed(finished):
    from dataclasses import replace

    from kbatch.results.ranking import leaders

    records = load_records(finished / "p")
    crashed = [
        replace(r, outcome=replace(r.outcome, ended="crashed")) if r.trial == 0 else r
        for r in records
    ]
    assert 0 not in [r.trial for r in leaders(crashed, 10)]
