"""A search whose horizon is given in epochs, and its confirmation."""

import json

import numpy as np
import pytest
import tensorflow as tf
from short_searches import search, tuner_of

import kbatch
from kbatch.results.loading import load_records
from kbatch.training import trial


def facts_of(directory):
    return json.loads((directory / "p" / "kbatch" / "project.json").read_text())


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    """A search of five epochs that was begun again, its folder, facts, and measured medians."""
    directory, medians = tmp_path_factory.mktemp("searched"), []
    measure = trial.median_update_seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trial,
            "median_update_seconds",
            lambda *args: medians.append(measure(*args)) or medians[-1],
        )
        search(tuner_of(directory, seconds=None, max_trials=1), points, epochs=np.int64(5))
        facts = facts_of(directory)
        tuner = search(tuner_of(directory, seconds=None, max_trials=1), points, epochs=5)
    return tuner, directory, facts, medians


def test_epochs_set_the_horizon_by_the_baseline_and_once(searched):
    _, directory, facts, medians = searched
    assert facts["epochs"] == 5  # NumPy's number is written as a number
    assert load_records(directory / "p")[0].outcome.ended == "horizon"
    assert facts["goal"]["seconds"] == facts["measured_horizon_seconds"]
    assert facts["goal"]["seconds"] == pytest.approx(5 * 19 * medians[0])  # 600 examples by 32
    assert facts_of(directory) == facts
    assert len(medians) == 1


def test_a_confirmation_after_epochs_takes_the_projects_horizon(searched, points):
    (x, y), validation = points
    runs = kbatch.confirm(
        searched[0],
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
