"""Charts: what they show against the records, for every kind of search."""

import dataclasses
import json
import math
import statistics
from dataclasses import replace

import altair
import pytest
from result_records import GOAL, confirmation, failed, record

from kbatch import canvas
from kbatch.results import charts
from kbatch.results.chart_data import (
    band,
    batch_infos,
    confirmed_infos,
    measured,
    panels,
    sizes,
    space_info,
)
from kbatch.results.charts import space_chart
from kbatch.results.interval import score_error
from kbatch.results.ranking import best_of

TARGET = replace(GOAL, target=0.8)
LOSS = replace(GOAL, metric="val_mae", direction="min", chance=2.5)


def shown(records, goal):
    return panels(records, goal, best_of(records))


def trials(goal=GOAL, level=0.3):
    runs = [record(-1, level / 2, "baseline", goal=goal, optimizer="compiled", learning_rate=None)]
    runs += [
        record(
            number,
            level * (1 + number / 10),
            speed=1 + number,
            goal=goal,
            batch_size=32 * 2**number,
        )
        for number in range(3)
    ]
    return [*runs, failed(record(3, 0.1, goal=goal, batch_size=512))]


def charts_of(records, goal, examples=400):
    infos = batch_infos(records, goal, examples)
    return [
        *charts.curve_charts(shown(records, goal), goal, examples),
        *charts.score_charts(infos, confirmed_infos(records, goal), goal),
        *charts.cost_charts(infos, goal),
        space_chart(space_info(records)),
    ]


def rows_of(chart):
    """All rows of all data of a chart in Vega-Lite."""
    found, left = [], [chart.spec()]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part
        elif isinstance(part, str) and part.startswith("[{"):
            found += json.loads(part)
    return found


def test_the_search_has_baseline_and_best_on_top():
    (panel,) = shown(trials(), GOAL)
    assert [info.role for info in panel.curves] == ["other", "other", "baseline", "best"]
    best = panel.curves[-1]
    assert best.curves == (trials()[3].outcome.curve,)
    assert best.held[0][1] == trials()[3].outcome.value
    assert best.mean == best.curves[0]


def test_a_confirmation_has_a_panel_with_every_seed_and_the_mean():
    again = confirmation({-1: 0.2, 0: 0.35, 1: 0.3}, 3)
    first, second = shown([*trials(), *again], GOAL)
    assert "3 fresh seeds" in first.title
    assert [info.role for info in first.curves] == ["other", "baseline", "best"]
    assert [len(info.curves) for info in first.curves] == [3, 3, 3]
    assert "also confirmed, trial 1" in first.curves[0].label
    assert "trial 0" in first.curves[2].label  # the best of the confirmation, not of the search
    baseline = first.curves[1]
    ends = [curve[-1][1] for curve in baseline.curves]
    assert baseline.mean[-1] == pytest.approx((10.0, sum(ends) / 3))
    assert len(baseline.held) == 3
    seconds, lower, upper = baseline.spread[-1]
    assert seconds == 10.0
    assert (lower + upper) / 2 == pytest.approx(sum(ends) / 3)
    assert (upper - lower) / 2 == pytest.approx(statistics.stdev(ends))
    assert second.curves[-1].spread == []  # one training has none
    assert second.title.startswith("The search")


def test_noise_is_that_of_a_share_and_unknown_for_others():
    points = ((1.0, 0.5), (2.0, 0.8))
    assert band(points, "val_accuracy", 400)[0] == pytest.approx((1.0, 0.45, 0.55))
    assert band(points, "val_mae", 400) == []
    assert band(points, "val_accuracy", 0) == []


def test_the_lines_of_a_chart_are_the_curves_of_the_records():
    (chart,) = charts.curve_charts(shown(trials(), GOAL), GOAL, 400)
    lines = {row["recipe"]: row for row in rows_of(chart) if "opacity" in row}
    for one in trials()[1:4]:
        line = lines[f"trial {one.trial}: {one.recipe}"]
        drawn = list(zip(line["seconds"], line["value"], strict=True))
        assert drawn == [pytest.approx(point, rel=1e-4) for point in one.outcome.curve]
    held = [row for row in rows_of(chart) if "seconds" in row and "recipe" in row]
    best = trials()[3].outcome.value
    assert any(row["value"] == pytest.approx(best, rel=1e-4) for row in held)
    assert "chance, 0.5" in str(chart.spec())
    assert "2 standard errors of one measurement (400 examples)" in chart.note


def test_a_confirmation_draws_each_seed_and_says_so():
    records = [*trials(), *confirmation({-1: 0.2, 0: 0.35}, 3)]
    chart, search = charts.curve_charts(shown(records, GOAL), GOAL, 400)
    assert len([row for row in rows_of(chart) if "opacity" in row]) == 2 * (3 + 1)
    assert "± 1 standard deviation" in chart.note
    assert {chart.name, search.name} == {"curves-confirmation", "curves-search"}


def test_with_a_target_the_axis_ends_where_the_last_one_did():
    runs = [
        record(number, 0.45, speed=6 + number, goal=TARGET, batch_size=32 * 2**number)
        for number in range(3)
    ]
    (chart,) = charts.curve_charts(shown(runs, TARGET), TARGET, 400)
    furthest = max(one.outcome.train_seconds for one in runs)
    assert furthest < 5
    assert f"'domain': [0, {furthest}]" in str(chart.spec())
    assert "target, 0.8" in str(chart.spec())
    info = batch_infos(runs, TARGET, 400)[0]
    assert info.value == runs[0].outcome.train_seconds
    assert info.error / info.value == pytest.approx(
        score_error(runs[0].outcome, TARGET, 400) / runs[0].score
    )


def test_a_target_that_was_missed_is_drawn_at_the_horizon(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(charts, "save", lambda charts, path: saved.extend(charts))
    infos = batch_infos([record(3, 0.1, goal=TARGET)], TARGET, 400)
    charts.draw_batches(infos, TARGET, tmp_path / "b.png")
    (row,) = rows_of(saved[0])
    assert (row["shape"], row["y"]) == ("target not held", TARGET.seconds)
    assert "training seconds until val_accuracy 0.8 is held" in str(saved[0].spec())


def test_what_a_rung_stopped_is_marked_where_it_was_judged():
    stopped = record(4, 0.2, ended="stopped")
    runs = [*trials(), dataclasses.replace(stopped, score=GOAL.score(stopped.outcome))]
    infos = batch_infos(runs, GOAL, 400)
    scores, speeds = charts.score_charts(infos, [], GOAL)[0], charts.cost_charts(infos, GOAL)[0]
    row = next(row for row in rows_of(scores) if row["name"] == "trial 4")
    assert (row["shape"], row["lower"]) == ("stopped at a rung", None)
    assert row["y"] == pytest.approx(GOAL.score(stopped.outcome), rel=1e-4)
    assert "might have become better" in scores.note
    assert "secured by then" in space_chart(space_info(runs)).note
    assert "secured by then" not in space_chart(space_info(trials())).note
    # its speed is measured as that of any other
    row = next(row for row in rows_of(speeds) if row["name"] == "trial 4")
    assert row["shape"] == "trained once"
    assert "rung" not in speeds.note + charts.score_charts(infos[:2], [], GOAL)[0].note


def test_what_a_rung_stopped_before_the_target_did_not_miss_it(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(charts, "save", lambda charts, path: saved.extend(charts))
    infos = batch_infos([record(3, 0.1, goal=TARGET, ended="stopped")], TARGET, 400)
    charts.draw_batches(infos, TARGET, tmp_path / "b.png")
    (row,) = rows_of(saved[0])
    assert (row["shape"], row["y"]) == ("stopped at a rung", TARGET.seconds)


def test_points_over_batch_size_are_the_scores_of_the_records():
    infos = batch_infos(trials(), GOAL, 400)
    assert [(info.batch_size, info.baseline) for info in infos] == [
        (32, True),
        (32, False),
        (64, False),
        (128, False),
        (512, False),
    ]
    assert infos[0].optimizer == "compiled"
    assert batch_infos(trials(), GOAL, 400, "AdamW")[0].optimizer == "compiled (AdamW)"
    chart = charts.score_charts(infos, [], GOAL)[0]
    rows = {row["name"]: row for row in rows_of(chart)}
    for one in trials():
        name = "baseline" if one.baseline else f"trial {one.trial}"
        assert rows[name]["y"] == pytest.approx(one.score, rel=1e-4)
        assert rows[name]["batch"] == one.recipe.batch_size
        assert math.log2(rows[name]["at"] / one.recipe.batch_size) == pytest.approx(0, abs=0.21)
    error = score_error(trials()[1].outcome, GOAL, 400)
    assert rows["trial 0"]["upper"] - rows["trial 0"]["y"] == pytest.approx(2 * error, rel=1e-2)
    assert rows["trial 3"]["shape"] == "failed"
    assert rows["trial 3"]["lower"] is None


def test_a_confirmed_recipe_is_its_mean_and_error_over_seeds():
    again = confirmation({-1: 0.2, 0: 0.35}, 3)
    infos = {info.trial: info for info in confirmed_infos([*trials(), *again], GOAL)}
    scores = [one.score for one in again if one.trial == 0]
    assert infos[0].seeds == 3
    assert infos[0].score == pytest.approx(statistics.fmean(scores))
    assert infos[0].score_error == pytest.approx(statistics.stdev(scores) / math.sqrt(3))
    once = confirmed_infos(confirmation({-1: 0.2, 0: 0.3}, 1), GOAL)
    assert [info.score_error for info in once] == [None, None]
    assert not confirmed_infos(confirmation({0: 0.3}, 1), GOAL)  # the baseline has not had the seed
    chart = charts.score_charts([], [*infos.values()], GOAL)[0]
    assert {row["shape"] for row in rows_of(chart)} == {"mean of fresh seeds"}


def test_scores_are_shown_by_what_differs():
    assert [chart.name for chart in charts.score_charts(batch_infos(trials(), GOAL, 9), [], GOAL)]
    many = [
        record(0, 0.3, policy="mixed_bfloat16"),
        record(1, 0.3, augmentation="flip", optimizer="sgd"),
    ]
    names = [chart.name for chart in charts.score_charts(batch_infos(many, GOAL, 400), [], GOAL)]
    assert names == ["score-optimizer", "score-policy", "score-augmentation"]
    alike = charts.score_charts(batch_infos(many[:1], GOAL, 400), [], GOAL)
    assert [chart.name for chart in alike] == ["score-optimizer"]


def test_groups_beyond_the_colours_are_one():
    names = [f"group {number}" for number in range(9)]
    assert canvas.groups(names[:6]) == names[:6]
    assert canvas.groups(names) == [*names[:5], "others"]
    runs = [record(number, 0.3, augmentation=name) for number, name in enumerate(names)]
    chart = charts.score_charts(batch_infos(runs, GOAL, 400), [], GOAL)[-1]
    assert {row["group"] for row in rows_of(chart)} == {*names[:5], "others"}


def test_memory_is_shown_in_megabytes_where_it_is_known():
    speed, memory = charts.cost_charts(batch_infos(trials(), GOAL, 400), GOAL)
    assert {row["y"] for row in rows_of(memory)} == {100.0}
    one = record(0, 0.3)
    measured_speeds = [each.outcome.examples_per_second for each in trials()[:4]]
    assert [row["y"] for row in rows_of(speed)] == pytest.approx(measured_speeds, rel=1e-4)
    silent = dataclasses.replace(one, outcome=replace(one.outcome, peak_bytes=None))
    assert len(charts.cost_charts(batch_infos([silent], GOAL, 400), GOAL)) == 1


def test_parallel_axes_are_those_on_which_trials_differ():
    runs = [
        record(
            number,
            0.1 * number,
            batch_size=32 * 2 ** (number % 3),
            values={"u<b>": number},
            learning_rate=10.0 ** -(number + 1),
        )
        for number in range(8)
    ]
    info = space_info([record(-1, 0.9, "baseline", batch_size=8), *runs])
    assert [axis.name for axis in info.axes] == [
        "batch size",
        "adam rate",
        "u<b>",
        "score/s",
    ]
    batch, rate, own, score = info.axes
    assert [tick.text for tick in batch.ticks] == ["32", "64", "128"]
    assert [tick.place for tick in batch.ticks] == [0.0, 0.5, 1.0]
    # logarithmic, and each trial's place is its value's
    assert rate.places == pytest.approx([1 - number / 7 for number in range(8)])
    assert own.places == pytest.approx([number / 7 for number in range(8)])
    assert score.places[-1] == 1.0
    assert [one.trial for one in info.records] == list(range(8))  # lowest score first
    drawn = [row for row in rows_of(space_chart(info)) if "trial" in row]
    assert drawn[-1]["axis"] == ["batch size", "adam rate", "u<b>", "score/s"]


def test_the_rates_of_each_optimizer_have_their_own_axis():
    """At the batch size of the recipe, as the table of recipes says them."""
    names = ("sgd", "adam")
    runs = [
        record(number, 0.1, optimizer=names[number % 2], learning_rate=2.0 ** -(number + 1))
        for number in range(16)
    ]
    info = space_info(runs)
    axes = {axis.name: axis for axis in info.axes}
    for optimizer in names:
        axis = axes[f"{optimizer} rate"]
        for one, place, text in zip(info.records, axis.places, axis.values, strict=True):
            mine = one.recipe.optimizer == optimizer
            assert (text, place > 0) == (f"{one.recipe.learning_rate:.3g}" if mine else "-", mine)


def test_bars_and_bands_stay_where_the_metric_can_be():
    infos = batch_infos([record(0, 0.001), record(1, 0.499, batch_size=64)], GOAL, 20)
    rows = rows_of(charts.score_charts(infos, [], GOAL)[0])
    assert min(row["lower"] for row in rows) >= 0
    edges = band(((1.0, 0.99), (2.0, 0.01)), "val_accuracy", 20)
    assert all(0 <= low <= high <= 1 for _, low, high in edges)


def test_axes_whose_names_are_cut_alike_stay_apart():
    values = {"a very long name of one": 1, "a very long name of two": 2}
    other = {name: value + 1 for name, value in values.items()}
    info = space_info([record(0, 0.1, values=values), record(1, 0.2, values=other)])
    names = rows_of(space_chart(info))[0]
    assert len({row["axis"] for row in rows_of(space_chart(info)) if "text" in row}) == 3, names


KINDS = {
    "nothing": ([], GOAL, 400),
    "failed": ([failed(record(0, 0.1))], GOAL, 400),
    "one trial": ([record(0, 0.3)], GOAL, 400),
    "baseline": ([record(-1, 0.3, "baseline")], GOAL, 0),
    "regression": (trials(LOSS, 2.0), LOSS, 400),
    "target": (trials(TARGET, 0.4), TARGET, 400),
    "target confirmed": (
        [*trials(TARGET, 0.4), *confirmation({-1: 0.45, 0: 0.4}, 2, goal=TARGET)],
        TARGET,
        400,
    ),
    "confirmation failed": (
        [*trials(), *[failed(one) for one in confirmation({-1: 0.45, 0: 0.4}, 2)]],
        GOAL,
        400,
    ),
    "not a number": (
        [record(0, 0.3, changes={"curve": ((1.0, math.nan), (2.0, math.inf)), "value": math.nan})],
        GOAL,
        400,
    ),
}


@pytest.mark.parametrize(("records", "goal", "examples"), KINDS.values(), ids=KINDS)
def test_every_kind_of_search_is_drawn(records, goal, examples):
    for chart in charts_of(records, goal, examples):
        altair.Chart.from_dict(chart.spec())  # refuses what Vega-Lite would not read
        assert chart.title
        assert chart.description
        assert "NaN" not in json.dumps(chart.spec())
    if not any(one.outcome.curve for one in records):
        chart = charts.curve_charts(shown(records, goal), goal, examples)[0]
        assert "Nothing was measured yet" in chart.note


@pytest.mark.parametrize("kind", ["nothing", "failed", "not a number"])
def test_files_are_written_however_little_there_is(kind, tmp_path):
    records, goal, examples = KINDS[kind]
    charts.draw_curves(shown(records, goal), goal, examples, tmp_path / "curves.png")
    charts.draw_batches(batch_infos(records, goal, examples), goal, tmp_path / "batches.png")
    for name in ("curves.png", "batches.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_every_plan_is_labelled_and_the_limit_is_a_line(tmp_path):
    infos = [
        canvas.PlanInfo("none", 100e6, 0.0),
        canvas.PlanInfo("minimal", 60e6, 0.05),
        canvas.PlanInfo("budget:0.50", 40e6, 0.3),
    ]
    plain = canvas.plan_chart(infos, "model")
    drawn = [(row["name"], row["percent"], row["megabytes"]) for row in rows_of(plain)]
    assert ("minimal", 5.0, 60.0) in drawn
    assert plain.note == ""
    limited = canvas.plan_chart(infos, "model", room_bytes=70e6)
    assert "what the limit leaves, 70 MB" in limited.note
    assert [row for row in rows_of(limited) if row["megabytes"] == 70.0]
    # a limit far above all peaks would press them to the ground
    assert not [row for row in rows_of(canvas.plan_chart(infos, "m", 1e9)) if not row["name"]]
    canvas.draw_plans(infos, "model", tmp_path / "a.png", room_bytes=70e6)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_throughput_has_the_measured_points_and_the_line(tmp_path):
    infos = canvas.speed_rows([(2, 10.0), (4, 18.0)], lambda size: 4.6 * size)
    chart = canvas.throughput_chart(infos, 4)
    rows = [(row["at"], row["examples_per_second"], row["fitted"]) for row in rows_of(chart)]
    assert {(2, 10.0, 9.2), (4, 18.0, 18.4)} <= set(rows)
    assert "within 5 % of the best from 4" in chart.note
    assert "Line" not in canvas.throughput_chart(canvas.speed_rows([(2, 10.0)], None), 2).note
    canvas.draw_throughput(infos, 4, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_trial_that_failed_has_no_speed():
    infos = batch_infos([failed(record(0, 0.3))], GOAL, 400)
    assert (len(infos), measured(infos), sizes(infos)) == (1, [], [32])
