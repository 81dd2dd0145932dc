import dataclasses
import math

import pandas as pd
import pytest

import kbatch
from kbatch import Outcome, Recipe, scoring
from kbatch.errors import RecordError
from kbatch.records import fingerprint
from kbatch.records.record import Record
from kbatch.records.store import Store
from kbatch.results import figures, report
from kbatch.results.claim import claim_of
from kbatch.results.ranking import ranking

SECONDS = 10.0


def record(trial, level, purpose="search", seed=0, speed=1.0, ended="horizon", **recipe):
    curve = tuple((t, 0.5 + level * (1 - math.exp(-speed * t / 3))) for t in scoring.marks(SECONDS))
    held = scoring.held(curve)
    outcome = Outcome(ended, curve, held.value, {"val_accuracy": held.value}, SECONDS, 0.01, 1000, 32000, {"total": 12.0}, 10**8)
    score = scoring.score(curve, SECONDS, 0.5) if ended == "horizon" else 0.0
    return Record(f"{purpose}{trial}{seed}", purpose, trial, seed, Recipe(**recipe), outcome, score, test={"accuracy": held.value - 0.01})


@pytest.fixture
def project(tmp_path):
    store = Store(tmp_path / "search" / "kbatch")
    records = [record(-1, 0.2, "baseline"), record(0, 0.3, batch_size=64), record(1, 0.31, batch_size=128, optimizer="sgd", learning_rate=0.1)]
    records += [record(2, 0.0, ended="nan", batch_size=256)]
    for seed in (1, 2, 3):
        records += [record(-1, 0.2 + 0.003 * seed, "confirmation", seed), record(1, 0.33 + 0.003 * seed, "confirmation", seed, 2.0, batch_size=128)]
    for one in records:
        store.end(one)
    goal = {"seconds": SECONDS, "metric": "val_accuracy", "direction": "max", "chance": 0.5, "target": None}
    fingerprint.save(tmp_path / "search" / "kbatch", {"goal": goal, "data": {"validation": {"examples": 400}}})
    return tmp_path


def test_a_table_has_one_row_a_trial_and_confirmations_are_apart(project):
    assert kbatch.results.load(project).trial.tolist() == [-1, 0, 1, 2]
    assert kbatch.results.load_confirmations(project / "search").seed.tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("where", [".", "search", "search/kbatch"])
def test_records_are_found_wherever_one_points(project, where):
    assert len(kbatch.results.load(project / where)) == 4


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(RecordError, match="must hold the records of one search"):
        kbatch.results.load(tmp_path)


def test_those_within_noise_of_the_best_are_named(project):
    ranks = ranking(list(report.findings(project).records), "val_accuracy", 400)
    assert [rank.record.trial for rank in ranks] == [1, 0, -1, 2]
    assert [rank.best for rank in ranks] == [True, False, False, False]
    assert [rank.within_noise for rank in ranks] == [False, True, False, False]
    assert ranks[0].standard_error == pytest.approx(scoring.standard_error(ranks[0].record.outcome.value, 400))


def test_a_claim_compares_means_over_fresh_seeds(project):
    claim = report.findings(project).claim
    assert (claim.baseline.seeds, claim.best.seeds, claim.best.trial) == (3, 3, 1)
    assert claim.best.score.mean > claim.baseline.score.mean
    assert claim.standard_errors > 2
    assert claim.speed_up > 1
    assert claim.best.missed == 0
    assert claim.best.test.mean == pytest.approx(claim.best.value.mean - 0.01)


def test_a_recipe_that_is_no_better_is_not_claimed_to_be():
    same = [record(trial, 0.2 + 0.01 * seed, "confirmation", seed) for trial in (-1, 0) for seed in (1, 2, 3)]
    claim = claim_of(same, SECONDS, "val_accuracy", "max", 0.5, 400)
    assert claim.standard_errors == pytest.approx(0)
    goal = {"metric": "val_accuracy", "seconds": SECONDS}
    assert any("within noise" in sentence for sentence in report.claim_sentences(claim, goal))
    worse = [dataclasses.replace(r, score=r.score / 3) if r.trial == 0 else r for r in same]
    assert any("baseline is better" in s for s in report.claim_sentences(claim_of(worse, SECONDS, "val_accuracy", "max", 0.5, 400), goal))


def test_without_a_confirmation_nothing_is_claimed():
    assert claim_of([], SECONDS, "val_accuracy", "max", 0.5, 400) is None
    assert "nothing is claimed" in report.claim_sentences(None, {})[0]


def test_figures_know_what_they_show_before_they_are_drawn(project):
    records = report.findings(project).records
    curves = figures.curve_infos(records)
    assert [info.role for info in curves] == ["other", "other", "baseline", "best"]
    assert curves[-1].points == records[2].outcome.curve
    assert [(info.batch_size, info.baseline) for info in figures.batch_infos(records)] == [(32, True), (64, False), (128, False), (256, False)]


def test_the_report_is_written_whole_and_can_be_written_again(project):
    files = report.write(project)
    assert {file.name for file in files} == {"trials.csv", "confirmations.csv", "report.md", "accuracy_over_seconds.png", "batch_size.png"}
    first = (project / "report.md").read_text()
    assert "batch 128, sgd 0.1" in first
    assert "within noise of the best" in first
    assert pd.read_csv(project / "trials.csv").trial.tolist() == [-1, 0, 1, 2]
    assert not list(project.glob("*.tmp"))
    report.write(project)
    assert (project / "report.md").read_text() == first
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files if file.suffix == ".png")


def test_a_training_that_failed_counts_in_the_claim_as_chance():
    runs = [record(trial, 0.3, "confirmation", seed) for trial in (-1, 0) for seed in (1, 2)]
    runs[2] = dataclasses.replace(runs[2], score=0.0, outcome=dataclasses.replace(runs[2].outcome, ended="out_of_memory", value=None, curve=()))
    claim = claim_of(runs, SECONDS, "val_accuracy", "max", 0.5, 400)
    assert (claim.best.seeds, claim.best.missed) == (2, 1)
    assert claim.best.value.mean == pytest.approx((0.5 + runs[3].outcome.value) / 2)
