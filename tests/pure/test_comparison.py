"""The comparison of two searches: what differs, and what may be said of their scores."""

import dataclasses
import itertools

import numpy as np
import pytest
import result_records
from typer.testing import CliRunner

import kbatch
from kbatch import Recipe
from kbatch.cli.app import app
from kbatch.errors import RecordError
from kbatch.outcome import Goal
from kbatch.records import project
from kbatch.results.claim import claim_of
from kbatch.results.comparison import compare
from kbatch.results.interval import interval, measuring_error

FOLDERS = itertools.count()


@pytest.fixture
def search(tmp_path):
    """Makes a search with a baseline and two trials, and a confirmation if there are seeds."""

    def make(best=0.3, baseline=0.2, seeds=0, goal=result_records.GOAL, versions=None, **facts):
        records = [
            result_records.record(-1, baseline, "baseline", batch_size=32, goal=goal),
            result_records.record(0, best, batch_size=64, goal=goal),
            result_records.record(1, 0.1, batch_size=128, goal=goal),
        ]
        if seeds:
            levels = {-1: baseline, 0: best, 1: 0.1}
            records += result_records.confirmation(levels, seeds, goal=goal)
        records = [
            dataclasses.replace(each, versions=versions or {}, device="CPU") for each in records
        ]
        folder = result_records.keep(tmp_path / f"runs{next(FOLDERS)}", records, goal)
        own = folder / "search" / "kbatch"
        project.save_facts(own, {**project.load_facts(own), **facts})
        return folder

    return make


def test_equal_searches_differ_in_nothing(search):
    found = compare(search(seeds=5), search(seeds=5))
    assert found.comparable
    assert found.differences == ()
    assert "within noise" in str(found)
    assert "is better" not in str(found)


def test_one_folder_may_be_compared_with_itself(search):
    folder = search()
    assert compare(folder, folder).differences == ()


def test_the_table_holds_baseline_and_best_of_both(search):
    table = compare(search(), search(best=0.4, seeds=3)).table
    assert list(table.search) == ["a", "a", "b", "b"]
    assert list(table.training) == ["baseline", "best"] * 2
    assert list(table.trial) == [-1, 0, -1, 0]
    assert list(table.seeds) == [0, 0, 3, 3]
    assert list(table.recipe) == [str(Recipe(size)) for size in (32, 64, 32, 64)]
    own = kbatch.report(search(best=0.4, seeds=3)).claim
    assert table.score[3] == pytest.approx(own.best.score.mean)
    assert table.value[2] == pytest.approx(own.baseline.value.mean)
    assert table.seconds_to_baseline[1] < table.seconds_to_baseline[0]


def test_the_interval_is_that_of_the_claim(search):
    """With the same trainings on both sides of a claim and of a comparison."""
    a, b = search(best=0.3, seeds=5), search(best=0.4, seeds=5)
    sentence = next(each for each in compare(a, b).sentences if each.startswith("The best"))
    sides = []
    for folder in (a, b):
        records = [
            each
            for each in kbatch.report(folder).records
            if each.purpose == "confirmation" and each.trial == 0
        ]
        scores = [each.score for each in records]
        sides.append((scores, measuring_error(records, result_records.GOAL, 400)))
    (first, first_error), (second, second_error) = sides
    # of two recipes on each side
    half = float(interval(first, second, first_error, second_error, 4))
    middle = np.mean(second) - np.mean(first)
    low, high = (float(word) for word in sentence.split("interval ")[1].split(")")[0].split(" to "))
    assert low == pytest.approx(middle - half, abs=6e-4)
    assert high == pytest.approx(middle + half, abs=6e-4)
    assert (middle - half > 0) == ("b is better" in sentence)


def test_a_clear_difference_is_claimed_of_confirmed_recipes_only(search):
    low, high = search(best=0.1, seeds=5), search(best=0.48, seeds=5)
    assert "b is better" in str(compare(low, high))
    assert "a is better" in str(compare(high, low))
    unconfirmed = str(compare(search(best=0.1), search(best=0.48)))
    assert unconfirmed.count("no difference is claimed") == 2
    assert "is better" not in unconfirmed
    assert "2 fresh seeds are too few" in str(compare(low, search(best=0.48, seeds=2)))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Goal(20.0, "val_accuracy", "max", 0.5), "seconds of the goal: 10.0 in a, 20.0 in b"),
        (Goal(10.0, "val_auc", "max", 0.5), "metric of the goal: val_accuracy in a, val_auc in b"),
        (Goal(10.0, "val_accuracy", "max", 0.5, 0.6), "target of the goal: nothing in a, 0.6 in b"),
        (Goal(10.0, "val_loss", "min", 0.7), "direction of the goal: max in a, min in b"),
    ],
)
def test_scores_of_other_goals_are_not_compared(search, other, words):
    found = compare(search(seeds=5), search(seeds=5, goal=other))
    assert not found.comparable
    assert words in found.differences
    assert "the scores cannot be compared" in str(found)
    assert "The best recipes" not in str(found)


@pytest.mark.parametrize(
    ("ours", "theirs", "comparable"),
    [
        ({"data": {"training": {"checksum": 1}}}, {"data": {"training": {"checksum": 2}}}, False),
        ({"validation_data": {"checksum": 1}}, {"validation_data": {"checksum": 2}}, False),
        ({"validation_data": {"checksum": 1}}, {"validation_data": {"checksum": None}}, True),
        ({"validation_data": {"checksum": 1}}, {}, True),
    ],
)
def test_of_other_data_nothing_is_claimed(search, ours, theirs, comparable):
    found = compare(search(best=0.3, seeds=5, **ours), search(best=0.6, seeds=5, **theirs))
    assert found.comparable is comparable
    assert ("Their data differ" in str(found)) is not comparable
    assert ("is better" in str(found)) is comparable


def test_what_else_differed_is_named(search):
    found = compare(
        search(seed=0, space={"batch_size": [32, 64]}, versions={"keras": "3.8", "python": "3.11"}),
        search(seed=1, space={"batch_size": [32]}, versions={"keras": "3.9", "python": "3.11"}),
    )
    assert found.differences == (
        "seed: 0 in a, 1 in b",
        "batch size of the space: [32, 64] in a, [32] in b",
        "version of keras: 3.8 in a, 3.9 in b",
    )
    assert all(each in str(found) for each in found.differences)


def test_a_search_that_has_only_begun_can_be_compared(tmp_path, search):
    begun = result_records.keep(tmp_path / "begun", [result_records.record(-1, 0.2, "baseline")])
    found = compare(begun, search())
    assert list(found.table.search) == ["a", "b", "b"]
    assert "a has no trial yet that ended well" in found.sentences
    assert "The best recipes: not trained on both sides" in str(found)


def test_a_search_whose_trials_failed_can_be_compared(tmp_path, search):
    records = [
        result_records.failed(result_records.record(trial, 0.2, purpose))
        for trial, purpose in ((-1, "baseline"), (0, "search"))
    ]
    found = compare(result_records.keep(tmp_path / "failed", records), search())
    assert found.table.value.isna().tolist() == [True, False, False]
    assert " - " in str(found)


def test_folders_without_a_search_are_refused(tmp_path, search):
    with pytest.raises(RecordError, match="must hold the records"):
        compare(search(), tmp_path / "none")
    done = CliRunner().invoke(app, ["compare", str(search()), str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "no such folder" in done.stderr


def test_the_command_prints_the_comparison(search):
    a, b = search(seeds=3), search(best=0.4, seeds=3)
    done = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(compare(a, b))


def test_a_notebook_shows_a_table(search):
    html = compare(search(), search())._repr_html_()
    assert html.count("<tr>") == 5
    assert "no difference is claimed" in html


def test_the_best_recipe_of_a_folder(search):
    folder = search(seeds=3)
    assert kbatch.results.best(folder) == kbatch.best_recipe(folder) == Recipe(64)
    assert claim_of(kbatch.report(folder).records, result_records.GOAL, 400).best.trial == 0
