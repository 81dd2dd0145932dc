"""Confirmations of a real search: which recipes are trained again, and on what."""

import numpy as np
import pytest
import tensorflow as tf
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
    runs = kbatch.confirm(tuner, x, y, validation, top=2, seeds=2, test_data=validation, verbose=0)
    assert len(runs) == 6
    assert runs.groupby("seed").size().tolist() == [3, 3]
    assert runs.baseline.sum() == 2
    assert not set(runs.seed) & {0}
    np.testing.assert_allclose(runs.test_accuracy, runs.val_accuracy, atol=1e-7)
    size = (directory / "p" / "kbatch" / "records.jsonl").stat().st_size
    again = kbatch.confirm(tuner, x, y, validation, top=2, seeds=2, test_data=validation, verbose=0)
    assert again.score.tolist() == runs.score.tolist()
    assert (directory / "p" / "kbatch" / "records.jsonl").stat().st_size == size


def test_a_confirmation_after_epochs_takes_the_projects_horizon(points, tmp_path):
    tuner = search(tuner_of(tmp_path, seconds=None, max_trials=1), points, epochs=5)
    (x, y), validation = points
    runs = kbatch.confirm(
        tuner,
        x,
        y,
        validation,
        top=1,
        seeds=1,
        test_data=tf.data.Dataset.from_tensor_slices(validation).batch(50),
        verbose=0,
    )
    assert len(runs) == 2
    assert runs.test_accuracy.notna().all()


def test_trials_that_failed_are_not_confirmed(searched):
    from dataclasses import replace

    from kbatch.training.confirmation import leaders

    records = load_records(searched[1] / "p")
    crashed = [
        replace(r, outcome=replace(r.outcome, ended="crashed")) if r.trial == 0 else r
        for r in records
    ]
    assert 0 not in [r.trial for r in leaders(crashed, 10)]
