import dataclasses
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from result_records import GOAL, confirmation, failed, keep, record

import kbatch
from kbatch import Recipe, outcome
from kbatch.errors import RecipeError, RecordError
from kbatch.records import project as records_project
from kbatch.results import report
from kbatch.results._advice_evidence import results_of
from kbatch.results.chart_data import MOST_LINES, panels
from kbatch.results.comparison import side_of
from kbatch.results.loading import load, uneven_speeds
from kbatch.results.page import contents_of
from kbatch.results.ranking import all_were_stopped, best_training, leaders, mean_score, ranking
from kbatch.results.report import MOST_ROWS, markdown_page
from kbatch.results.words import ended_text, score_text
from kbatch.space import Combination

OLD = Path("/work/shared/data/old-project")


@pytest.fixture
def project(tmp_path):
    values = {
        "units": 64,
        "dropout": 0.25,
        "batch_size": 64,
        "learning_rate_adam": 1e-3,
        "tuner/trial_id": "0",
    }
    records = [record(-1, 0.2, "baseline"), record(0, 0.3, values=values, batch_size=64)]
    best = {
        "batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "micro_batch_size": 32,
        "values": {**values, "units": 32},
    }
    records += [record(1, 0.31, **best)]
    records += [failed(record(2, 0.0, batch_size=256), "nan")]
    for seed in (1, 2, 3):
        records += [
            record(-1, 0.2 + 0.003 * seed, "confirmation", seed),
            record(1, 0.33 + 0.003 * seed, "confirmation", seed, 2.0, **best),
        ]
    return keep(tmp_path, records)


def test_a_table_has_one_row_a_trial_and_confirmations_are_apart(project):
    assert kbatch.results.load(project).trial.tolist() == [-1, 0, 1, 2]
    assert kbatch.results.load_confirmations(project / "search").seed.tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("where", [".", "search", "search/kbatch"])
def test_records_are_found_wherever_one_points(project, where):
    assert len(kbatch.results.load(project / where)) == 4


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(RecordError, match="must hold the records of one search"):
        kbatch.results.load(tmp_path)


def test_the_baseline_and_those_within_noise_are_named(project):
    ranks = kbatch.report(project).ranks
    assert [rank.record.trial for rank in ranks] == [-1, 1, 0, 2]
    assert [rank.verdict for rank in ranks] == [
        "one seed, not ranked",
        "best",
        "within noise of the best",
        "",
    ]
    assert ranks[1].standard_error == pytest.approx(
        outcome.standard_error(ranks[1].record.outcome.value, 400)
    )


def test_what_scores_below_the_baseline_is_not_called_best():
    ranks = ranking([record(-1, 0.35, "baseline"), record(0, 0.3, batch_size=64)], GOAL, 400)
    assert ranks[1].verdict == "best of the search; the baseline did better"
    assert ranks[0].verdict == "one seed, not ranked"


def test_the_report_is_written_whole_and_can_be_written_again(project):
    files = report.write(project)
    assert {file.name for file in files} == {
        "trials.csv",
        "confirmations.csv",
        "report.md",
        "accuracy_over_seconds.png",
        "batch_size.png",
    }
    first = (project / "report.md").read_text()
    assert "batch 128 (4 x 32), sgd 0.1" in first
    assert "within noise of the best" in first
    assert pd.read_csv(project / "trials.csv").trial.tolist() == [-1, 0, 1, 2]
    assert not list(project.glob("*.tmp"))
    report.write(project)
    assert (project / "report.md").read_text() == first
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files if file.suffix == ".png")


def test_the_printed_table_is_short_and_keeps_all_columns(project):
    trials = kbatch.results.load(project)
    assert isinstance(trials, pd.DataFrame)
    for text in (repr(trials), trials._repr_html_()):
        assert all(
            name in text
            for name in (
                "trial",
                "recipe",
                "score",
                "val_accuracy",
                "train_seconds",
                "ended",
                "hp_units",
            )
        )
        assert "batch 128 (4 x 32), sgd 0.1" in text
        assert "peak_bytes" not in text
        assert "..." not in text
        assert f"{len(trials.columns)} columns" in text
    assert {"peak_bytes", "stopped_by", "final_learning_rate", "skipped_updates"} <= set(
        trials.columns
    )


def test_a_selection_is_shown_as_it_was_selected(project):
    trials = kbatch.results.load(project)
    for part in (
        trials.sort_values("score", ascending=False).head(2),
        trials[trials.score > 0],
        trials.copy(),
    ):
        assert "hp_units" in repr(part)
        assert "peak_bytes" not in repr(part)
    assert "peak_bytes" in repr(trials[["trial", "peak_bytes"]])
    assert "columns in all" not in repr(trials[["trial", "recipe", "score"]])
    assert "mean" in repr(trials.groupby("baseline")["score"].agg(["mean"]))
    assert trials.iloc[1]["recipe"] == "batch 64, adam 0.001"


def test_a_project_without_an_ended_training_has_all_columns(project, tmp_path):
    empty = keep(tmp_path / "empty", [])
    (empty / "search" / "kbatch" / "records.jsonl").write_text('{"event": "started", "key": "a"}\n')
    trials = kbatch.results.load(empty)
    full = kbatch.results.load(project)
    assert (len(trials), [name for name in full.columns if not name.startswith("hp_")]) == (
        0,
        list(trials.columns),
    )
    assert trials.sort_values("score")["val_accuracy"].tolist() == []
    assert "score" in repr(trials)
    assert "nothing is claimed" in str(kbatch.report(empty))
    assert len(report.write(empty)) == 4


@pytest.mark.parametrize(
    "ask", [kbatch.results.load, kbatch.report, kbatch.best_recipe, report.write]
)
@pytest.mark.parametrize("what", ["missing", "empty", None, 3])
def test_what_holds_no_search_is_refused_in_our_words(ask, what, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        RecordError, match="Received: (no such folder|no records in it|NoneType|int)"
    ):
        ask(tmp_path / what if isinstance(what, str) else what)


@pytest.mark.parametrize("number", range(3))
def test_a_row_makes_its_recipe_again(project, number):
    trials, records = kbatch.results.load(project), kbatch.report(project).records
    trials.to_csv(project / "kept.csv", index=False)
    kept = pd.read_csv(project / "kept.csv")
    for row in (
        trials.iloc[number],
        trials.iloc[number].to_dict(),
        trials.to_dict("records")[number],
        kept.iloc[number],
    ):
        assert Recipe.from_dict(row) == records[number].recipe


def test_a_row_of_a_compiled_optimizer_makes_its_recipe_again(tmp_path):
    recipe = {
        "optimizer": "compiled",
        "learning_rate": None,
        "jit_compile": True,
        "recompute": "sqrt",
        "policy": "mixed_float16",
    }
    row = kbatch.results.load(keep(tmp_path, [record(-1, 0.2, "baseline", **recipe)])).iloc[0]
    assert row.learning_rate == 0.1
    assert Recipe.from_dict(row) == Recipe(**recipe)


def test_a_plain_dict_with_unknown_fields_is_still_refused(project):
    with pytest.raises(RecipeError, match="only known fields"):
        Recipe.from_dict({"batch_size": 32, "colour": "red"})
    with pytest.raises(RecipeError, match="every column of a recipe"):
        Recipe.from_dict(kbatch.results.load(project)[["trial", "recipe", "batch_size"]].iloc[0])
    for nonsense in (None, 3, "batch 32", [1]):
        with pytest.raises(RecipeError, match="must be a dict or one row"):
            Recipe.from_dict(nonsense)


def test_the_best_recipe_is_the_confirmations_else_the_searchs(tmp_path):
    trials = [
        record(-1, 0.1, "baseline"),
        record(0, 0.3, batch_size=64),
        record(1, 0.31, batch_size=128),
    ]
    assert kbatch.best_recipe(keep(tmp_path / "before", trials)) == Recipe(batch_size=128)
    folder = keep(tmp_path / "after", [*trials, *confirmation({-1: 0.1, 0: 0.3, 1: 0.2}, 2)])
    assert kbatch.best_recipe(folder) == Recipe(batch_size=64)
    best = kbatch.report(folder).best
    assert (best.trial, best.purpose) == (0, "search")  # not the luckiest of its seeds


def again(trial, level, repeats=0, **recipe):
    """The repeat of a trial in a search."""
    return replace(record(trial, level, seed=100_000, **recipe), repeats=repeats)


def test_what_reads_a_search_takes_means_over_repeats(tmp_path):
    trials = [record(0, 0.4, batch_size=64), record(1, 0.3, batch_size=128)]
    base = record(-1, 0.1, "baseline")
    folder = keep(tmp_path / "search", [base, *trials, again(2, 0.05, batch_size=64)])
    past = results_of([kbatch.results.load(folder)]).trainings
    (mean,) = (each for each in past if each.recipe.batch_size == 64)
    assert mean.score == pytest.approx((trials[0].score + again(2, 0.05).score) / 2)
    assert kbatch.best_recipe(folder).batch_size == 128
    side = side_of(folder)
    assert [each.trial for each in side.trained["best"].records] == [1]
    folder = keep(tmp_path / "leads", [base, *trials, again(2, 0.35, batch_size=64)])
    assert [each.trial for each in side_of(folder).trained["best"].records] == [0, 2]


def test_a_recipe_that_was_trained_twice_has_its_mean_score():
    records = [
        record(-1, 0.2, "baseline"),
        record(0, 0.4, batch_size=64),
        record(1, 0.3, batch_size=128),
        again(2, 0.1, batch_size=64),
    ]
    ranks = {rank.record.trial: rank for rank in ranking(records, GOAL, 400)}
    assert ranks[1].verdict == "best"
    assert ranks[2].verdict == "trial 0 again"
    assert [rank.verdict for rank in ranks.values()].count("best") == 1
    assert [each.trial for each in leaders(records, 9)] == [1, 0]
    higher = [*records[:3], again(2, 0.36, batch_size=64)]
    ranks = {rank.record.trial: rank for rank in ranking(higher, GOAL, 400)}
    assert ranks[0].verdict.startswith("best (")
    assert re.fullmatch(r"best \(.*, mean of 2 trainings\)", ranks[0].verdict)
    assert [each.trial for each in leaders(higher, 9)] == [0, 1]
    below = [record(-1, 0.39, "baseline"), *higher[1:]]
    assert "the baseline did better" in ranking(below, GOAL, 400)[1].verdict


def test_the_best_recipe_says_when_the_baseline_is_better(tmp_path):
    trials = [record(-1, 0.4, "baseline"), record(0, 0.3, batch_size=64)]
    with pytest.warns(UserWarning, match="The baseline did better"):
        assert kbatch.best_recipe(keep(tmp_path / "search", trials)).batch_size == 64
    with pytest.warns(UserWarning, match="The baseline did better"):
        kbatch.best_recipe(
            keep(
                tmp_path / "confirmed",
                [record(-1, 0.1, "baseline"), trials[1], *confirmation({-1: 0.4, 0: 0.3}, 1)],
            )
        )
    with pytest.warns(UserWarning, match="No trial held more than chance"):
        kbatch.best_recipe(keep(tmp_path / "chance", [record(0, 0.0)]))


def test_without_a_trial_that_ended_well_there_is_no_best_recipe(tmp_path):
    for name, records in {
        "none": [],
        "baseline": [record(-1, 0.2, "baseline")],
        "failed": [failed(record(0, 0.2))],
    }.items():
        folder = keep(tmp_path / name, records)
        (folder / "search" / "kbatch" / "records.jsonl").touch()
        with pytest.raises(RecordError, match="must hold a trial that did not fail"):
            kbatch.best_recipe(folder)
        assert kbatch.report(folder).best is None


def test_where_all_trials_were_stopped_the_baseline_is_kept(tmp_path):
    stopped = [record(trial, 0.1, ended="stopped") for trial in (0, 1)]
    folder = keep(tmp_path, [record(-1, 0.2, "baseline"), *stopped, failed(record(2, 0.1))])
    with pytest.raises(RecordError) as raised:
        kbatch.best_recipe(folder)
    assert "of 3 trials 2 that were stopped at a rung and 1 that failed" in str(raised.value)
    assert "Keep the baseline, or search on" in str(raised.value)
    assert all_were_stopped([*stopped, failed(record(2, 0.1))])
    assert not all_were_stopped([*stopped, record(2, 0.1)])
    assert not all_were_stopped([failed(record(2, 0.1))])  # which a confirmation refuses


def test_after_a_race_the_best_is_the_same_everywhere(tmp_path):
    again = [*confirmation({-1: 0.2, 0: 0.3}, 3), *confirmation({1: 0.35}, 1)]
    trials = [record(trial, 0.3, batch_size=64 * 2**trial) for trial in (0, 1)]
    folder = keep(tmp_path, [record(-1, 0.2, "baseline"), *trials, *again])
    of_project = folder / "search" / "kbatch"
    race = {"looks": [1, 3], "dropped": [1]}
    records_project.save_facts(of_project, {**records_project.load_facts(of_project), **race})
    found = kbatch.report(folder)
    assert found.best.trial == best_training(folder).trial == 0
    assert side_of(folder).trained["best"].records[0].trial == 0
    assert "trial 1 dropped out, behind the others" in " ".join(found.sentences)
    verdicts = {rank.record.trial: rank.verdict for rank in found.ranks}
    assert (verdicts[0], verdicts[1]) == ("best", "within noise of the best")
    fresh = [*confirmation({-1: 0.2, 0: 0.3, 1: 0.35}, 1)]
    assert ranking([*trials, *fresh], GOAL, 400)[0].verdict == "best of the search"
    roles = {row.role: row.cells[0].text for row in contents_of(folder).table.rows}
    assert roles["best"] == "0"


def test_a_tuner_is_as_good_as_its_folder(project):
    class Tuner:
        project_dir = str(project / "search")

    assert kbatch.best_recipe(Tuner()) == kbatch.best_recipe(project)
    assert str(kbatch.report(Tuner())) == str(kbatch.report(project))
    assert len(kbatch.results.load(Tuner())) == 4


def test_a_report_writes_nothing_and_prints_as_the_command(project):
    before = sorted(project.rglob("*"))
    text = str(kbatch.report(project))
    assert sorted(project.rglob("*")) == before
    code = (
        f"import sys; sys.modules['tensorflow'] = None\nfrom kbatch.cli.app "
        f"import app\napp(['report', {str(project)!r}])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith(text + "\n")
    assert printed[len(text) :].lstrip().startswith("Written: ")


def test_a_report_shows_itself_in_a_notebook(project):
    page = kbatch.report(project)._repr_html_()
    assert page.count("<tr>") == 5
    assert "batch 128 (4 x 32), sgd 0.1" in page
    assert "trial 1, over 3 fresh seeds each" in page.replace("-&gt; ", "")


def test_own_hyperparameters_are_in_table_page_and_csv(project):
    found = kbatch.report(project)
    assert "units 64, dropout 0.25" in str(found)
    assert "units 32, dropout 0.25" in found.markdown()
    assert "own hyperparameters" in found._repr_html_()
    assert "defaults" in str(found)
    report.write(project)
    table = pd.read_csv(project / "trials.csv")
    assert table.hp_units.tolist()[1:3] == [64, 32]
    assert not {"hp_batch_size", "hp_learning_rate_adam", "hp_tuner/trial_id"} & set(table.columns)


def test_the_optimizer_of_the_users_model_is_named_if_known(project):
    from kbatch.records import project as records_project
    from kbatch.results.loading import load_own_optimizer

    assert load_own_optimizer(project) == ""
    folder = project / "search" / "kbatch"
    records_project.save_facts(
        folder, {**records_project.load_facts(folder), "signature": {"optimizer": "AdamW 1234abcd"}}
    )
    assert load_own_optimizer(project) == "AdamW"


def test_the_ending_says_when_and_by_whom(tmp_path):
    stopped = {
        "ended": "callback",
        "train_seconds": 2.31,
        "stopped_by": "EarlyStopping",
        "learning_rate": 0.1,
        "final_learning_rate": 1e-5,
    }
    one = record(0, 0.3, changes={**stopped, "skipped_updates": 3})
    assert (
        ended_text(one.outcome) == "EarlyStopping after 2.31 s, rate then 1e-05, 3 updates skipped"
    )
    assert ended_text(record(0, 0.4, goal=replace(GOAL, target=0.8)).outcome).startswith(
        "target after "
    )
    assert ended_text(record(0, 0.3).outcome) == "horizon"
    assert ended_text(failed(record(0, 0.3)).outcome).startswith("out of memory")
    folder = keep(tmp_path, [one])
    assert "EarlyStopping after 2.31 s" in kbatch.report(folder).markdown()
    row = kbatch.results.load(folder).iloc[0]
    assert (row.stopped_by, row.final_learning_rate, row.skipped_updates) == (
        "EarlyStopping",
        1e-5,
        3,
    )


def test_a_long_search_is_shown_in_part(tmp_path):
    trials = [record(trial, 0.2, batch_size=trial + 1) for trial in range(2 * MOST_ROWS)]
    trials[7] = best = record(7, 0.3, batch_size=8)
    baseline = record(-1, 0.1, "baseline", batch_size=32)
    found = kbatch.report(keep(tmp_path, [baseline, *trials]))
    assert found.best == best
    assert f"{MOST_ROWS + 1} more trials, scored lower, are in trials.csv." in str(found)
    (panel,) = panels(found.records, found.goal, found.best)
    assert panel.title == f"The search: {MOST_LINES} of its trials, evenly taken from 599"
    labels = [info.label for info in panel.curves]
    assert len(labels) == MOST_LINES + 2
    assert labels[-2].startswith("baseline")
    assert labels[-1].startswith("trial 7")
    assert len(load(tmp_path)) == 2 * MOST_ROWS + 1


def test_recipes_are_led_by_the_mean_of_their_trainings():
    rng = random.Random(0)
    trials = [record(trial, rng.random(), batch_size=trial + 1) for trial in range(40)]
    again = [dataclasses.replace(record(40 + n, rng.random()), repeats=n) for n in range(0, 40, 3)]
    records = [*trials, *again]
    assert leaders(records, 40) == sorted(trials, key=lambda one: -mean_score(records, one))


def test_scores_are_shown_in_one_unit(project):
    found, best = kbatch.report(project), kbatch.results.load(project).score.max()
    shown = score_text(best)
    assert float(shown) == pytest.approx(best, rel=0.01)
    for text in (str(found), found.markdown(), found._repr_html_()):
        assert shown in text
        assert "1000" not in text


@pytest.mark.skipif(not OLD.exists(), reason="the shared data are not here")
def test_an_old_project_is_read_reported_on_and_drawn(tmp_path):
    trials = kbatch.results.load(OLD)
    assert len(trials) == 7
    assert Recipe.from_dict(trials.iloc[1]) == kbatch.best_recipe(OLD)
    folder = tmp_path / "old"
    for file in ("records.jsonl", "project.json"):
        (folder / "search" / "kbatch").mkdir(parents=True, exist_ok=True)
        (folder / "search" / "kbatch" / file).write_bytes(
            (OLD / "search" / "kbatch" / file).read_bytes()
        )
    assert len(report.write(folder)) == 5
    assert "Too few seeds to claim" in (folder / "report.md").read_text()


def test_values_show_themselves_as_tables_in_a_notebook():
    from kbatch.memory._estimate import Speed, Throughput
    from kbatch.memory._max_batch import MaxBatch, Probe, Row, Table
    from kbatch.recompute._plan import Plan, PlannedSegment

    probe = Probe(64, "passed", 10**8, 1.0, (0.1,) * 60)
    found = MaxBatch(
        151, 10**8, 4 * 10**8, 168, (probe,), (probe,), 175, 150, None, Recipe(), "jump", 3.0
    )
    table = Table(
        (Row(Combination("float32", "adam", False), 151, 140, 10**8, 168, 60),),
        4 * 10**8,
        "none",
        3,
        0,
        12.0,
    )
    speeds = Throughput((Speed(2, 0.01, 200.0, 0), Speed(4, 0.015, 266.7, 0)), None, 4)
    plan = Plan("sqrt", (PlannedSegment("a", "b <c>", 2, True),), 32, 10, 20, 0.25)
    for value, words in ((found, "175"), (table, "151"), (speeds, "267"), (plan, "b &lt;c&gt;")):
        page = value._repr_html_()
        assert page.startswith("<table>")
        assert words in page
        assert "0.1, 0.1" not in page


def trained(trial, examples, purpose="confirmation", device="", **recipe):
    """A training of ten seconds on so many examples."""
    one = record(trial, 0.3, purpose, changes={"examples": examples}, **recipe)
    assert one.outcome.examples_per_second == examples / 10
    return dataclasses.replace(one, device=device)


def test_a_recipe_of_two_speeds_is_named():
    records = [trained(-1, 40_000), trained(2, 29_000), trained(-1, 41_000), trained(2, 9_000)]
    (said,) = uneven_speeds(records)
    assert said.startswith("trial 2's fresh seeds trained on 900 to 2,900 examples per second")
    assert f"- {said}" in markdown_page(records, GOAL, [], None, {})
    assert uneven_speeds(records[:3]) == []


def test_only_what_should_be_as_fast_is_compared():
    fast, slow = trained(1, 29_000), trained(1, 9_000)
    assert len(uneven_speeds([fast, slow])) == 1
    # the search's own trainings may have had the machine for themselves
    assert uneven_speeds([trained(1, 29_000, "search"), slow]) == []
    assert uneven_speeds([trained(1, 29_000, device="NVIDIA H200"), slow]) == []
    assert uneven_speeds([trained(2, 29_000), slow]) == []
    growing = [trained(1, count, batch_schedule="exponential:8") for count in (29_000, 9_000)]
    assert uneven_speeds(growing) == []
    broken = record(1, 0.3, "confirmation", ended="nan", changes={"examples": 290_000})
    assert uneven_speeds([broken, slow]) == []
    short = record(1, 0.3, "confirmation", changes={"examples": 90, "train_seconds": 0.9})
    assert uneven_speeds([short, fast]) == []


def test_what_differs_by_chance_is_not_named():
    assert uneven_speeds([trained(1, 20_000), trained(1, 29_000)]) == []
