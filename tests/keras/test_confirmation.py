"""Confirmations of a real search: which recipes are trained again, and on what."""

import numpy as np
import pytest
from short_searches import search, tuner_of

import kbatch
from kbatch.results.loading import load_records


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    directory = tmp_path_factory.mktemp("searched")
    return search(tuner_of(directory, max_trials=2, seed=1), points), directory


def test_a_confirmation_trains_with_fresh_seeds_and_resumes(searched, points):
    tuner, directory = searched
    (x, y), validation = points
    data = {"validation_data": validation, "test_data": validation, "verbose": 0}
    both = kbatch.confirm(tuner, x, y, top=2, seeds=1, **data)
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


def test_trials_that_failed_are_not_confirmed(searched):
    from dataclasses import replace

    from kbatch.results.ranking import leaders

    records = load_records(searched[1] / "p")
    crashed = [
        replace(r, outcome=replace(r.outcome, ended="crashed")) if r.trial == 0 else r
        for r in records
    ]
    assert 0 not in [r.trial for r in leaders(crashed, 10)]
