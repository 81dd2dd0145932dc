import json

import pytest
from fake_search import once, trained

from kbatch import Recipe
from kbatch.errors import RecordError
from kbatch.records.at_most_once import CRASHES, Job
from kbatch.records.project import Project

JOB = Job("search", 3, 0, Recipe(), {"units": 8}, 1e-3)


def test_a_training_runs_once_and_is_then_read_from_its_record(tmp_path):
    calls = []
    for _ in range(3):
        record = once(Project(tmp_path), JOB, lambda: calls.append(1) or trained())
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
            once(Project(tmp_path), JOB, interrupted)
    assert once(Project(tmp_path), JOB, trained).outcome.ended == "horizon"


def test_a_training_that_kills_its_process_twice_has_crashed(tmp_path):
    for _ in range(CRASHES):
        Project(tmp_path).store.start(JOB.key)
    record = once(Project(tmp_path), JOB, lambda: pytest.fail("must not be trained a third time"))
    assert record.outcome.ended == "crashed"
    assert record.score == 0.0


def test_facts_are_kept_from_the_first_agreement(tmp_path):
    Project(tmp_path).agree({"seed": 1})
    Project(tmp_path).agree({"seed": 1, "measured_horizon_seconds": 2.0})
    assert Project(tmp_path).facts() == {"seed": 1, "measured_horizon_seconds": 2.0}


def test_a_trial_is_known_by_its_drawn_values_not_its_recipe(tmp_path):
    """The warm-up of a drawn batch size changed with a version; the trial is not trained again."""
    drawn = {"batch_size": 64, "learning_rate_sgd": 0.012345678901234567, "units": 8}
    before = Job("search", 3, 0, Recipe(batch_size=64, warmup_updates=19), drawn, 1e-3)
    once(Project(tmp_path), before, trained)
    now = Job("search", 5, 0, Recipe(batch_size=64, warmup_updates=9), drawn, 1e-3)
    assert (
        once(
            Project(tmp_path), now, lambda: pytest.fail("it was trained before")
        ).recipe.warmup_updates
        == 19
    )
    assert Project(tmp_path).trainings.known(Job("search", 5, 1, now.recipe, drawn, 1e-3)) is None
    assert (
        Project(tmp_path).trainings.known(Job("confirmation", 5, 0, now.recipe, drawn, 1e-3))
        is None
    )


def test_the_trials_of_an_old_project_are_answered(tmp_path):
    from pathlib import Path

    old = Path(__file__).resolve().parents[3] / "shared" / "data" / "old-project" / "search"
    if not old.is_dir():
        pytest.skip(f"no old project at {old}")
    project = Project(old)
    trials = [record for record in project.store.records() if record.purpose == "search"]
    assert len(trials) == 6
    for record in trials:
        asked = Job(
            "search", record.trial, record.seed, Recipe(batch_size=7), dict(record.values), None
        )
        assert project.trainings.known(asked) == record


def test_a_sigterm_that_nobody_handles_is_no_crash(tmp_path, request):
    import os
    import signal

    def terminated():
        os.kill(os.getpid(), signal.SIGTERM)
        return trained()

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray installs one of its own
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    for _ in range(CRASHES + 1):
        with pytest.raises(KeyboardInterrupt):
            once(Project(tmp_path), JOB, terminated)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert once(Project(tmp_path), JOB, trained).outcome.ended == "horizon"


def test_records_that_are_gone_while_trials_are_there_are_missed(tmp_path):
    (tmp_path / "trial_0").mkdir()
    for status in ("RUNNING", "COMPLETED"):
        Project(tmp_path).check_complete()
        (tmp_path / "trial_0" / "trial.json").write_text(json.dumps({"status": status}))
    with pytest.raises(
        RecordError, match=r"none, though KerasTuner's 1 trials are there. Bring records.jsonl back"
    ):
        Project(tmp_path).check_complete()
    once(Project(tmp_path), JOB, trained)
    Project(tmp_path).check_complete()
