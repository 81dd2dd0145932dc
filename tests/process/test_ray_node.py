"""A machine of a Ray cluster that is lost under a training."""

import threading

import pytest
import ray
import ray.cluster_utils
from test_executor import _wait_for_two
from test_search_tuner import search, tuner_in

from kbatch.results.loading import load_records
from kbatch.training.workers import RayExecutor


@pytest.mark.slow
def test_a_node_that_dies_ends_one_training(points, tmp_path):
    own = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [own.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=own.address, log_to_driver=False)
    project = tmp_path / "p"
    try:
        tuner = tuner_in(tmp_path, executor=RayExecutor(workers=2), seconds_per_trial=4)
        thread = threading.Thread(target=_lose_once_two_train, args=(project, own, nodes[0]))
        thread.start()
        search(tuner, points, max_trials=4)
        thread.join()
    finally:
        ray.shutdown()
        own.shutdown()
    records = load_records(project)
    assert sorted(record.trial for record in records) == [-1, 0, 1, 2, 3]
    assert {record.outcome.ended for record in records} <= {"horizon", "stopped"}
    again = [each for each in records if "made again" in " ".join(each.outcome.remarks)]
    assert len(again) == 1


def _lose_once_two_train(project, own, node):
    _wait_for_two(project)
    own.remove_node(node, allow_graceful=False)
