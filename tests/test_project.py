import pytest

from kbatch import Outcome, Recipe
from kbatch.training.project import CRASHES, Identity, Project, Trained

IDENTITY = Identity("search", 3, 0, Recipe(), {"units": 8}, 1e-3)


def trained():
    return Trained(Outcome(ended="horizon", value=0.7), 0.02)


def test_a_training_is_made_once_and_then_answered_from_its_record(tmp_path):
    calls = []
    for _ in range(3):
        record = Project(tmp_path).once(IDENTITY, lambda: calls.append(1) or trained())
    assert len(calls) == 1
    assert record.score == 0.02
    assert record.trial == 3
    assert record.versions.keys() >= {"tensorflow", "keras", "keras-tuner"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interrupted_training_begins_again_however_often(tmp_path, error):
    def interrupted():
        raise error

    for _ in range(CRASHES + 2):
        with pytest.raises(error):
            Project(tmp_path).once(IDENTITY, interrupted)
    assert Project(tmp_path).once(IDENTITY, trained).outcome.ended == "horizon"


def test_a_training_that_kills_its_process_twice_is_recorded_as_crashed(tmp_path):
    for _ in range(CRASHES):
        Project(tmp_path).store.start(IDENTITY.key)
    record = Project(tmp_path).once(IDENTITY, lambda: pytest.fail("must not be trained a third time"))
    assert record.outcome.ended == "crashed"
    assert record.score == 0.0


def test_facts_are_kept_from_the_first_agreement(tmp_path):
    Project(tmp_path).agree({"seed": 1})
    Project(tmp_path).agree({"seed": 1, "measured_horizon_seconds": 2.0})
    assert Project(tmp_path).facts() == {"seed": 1, "measured_horizon_seconds": 2.0}
