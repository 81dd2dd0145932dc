"""Figures: what they show, before and after they are drawn, for every kind of search."""

import dataclasses
import statistics
from dataclasses import replace

import matplotlib.figure
import pytest
from kbatch.results.figure_data import band, batch_infos, panels
from result_records import GOAL, confirmation, failed, record

from kbatch.results import figures, plan_figure
from kbatch.results.noise import score_error

TARGET = replace(GOAL, target=0.8)
LOSS = replace(GOAL, metric="val_mae", direction="min", chance=2.5)


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


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that was drawn."""
    made = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure, file, **options):
        made.append(figure)
        save(figure, file, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return made


def texts(figure):
    found = [figure._suptitle.get_text()] if figure._suptitle else []
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        found += [
            axes.get_title(),
            axes.get_xlabel(),
            axes.get_ylabel(),
            *(text.get_text() for text in axes.texts),
        ]
    return " | ".join(found)


def curves(records, goal, path, examples=400):
    figures.draw_curves(panels(records, goal), goal, examples, path / "curves.png")


def test_the_search_figure_has_baseline_and_best_on_top():
    (panel,) = panels(trials(), GOAL)
    assert [info.role for info in panel.curves] == ["other", "other", "baseline", "best"]
    best = panel.curves[-1]
    assert best.curves == (trials()[3].outcome.curve,)
    assert best.held[0][1] == trials()[3].outcome.value
    assert best.mean == best.curves[0]


def test_a_confirmation_has_a_panel_with_every_seed_and_the_mean():
    again = confirmation({-1: 0.2, 0: 0.35, 1: 0.3}, 3)
    first, second = panels([*trials(), *again], GOAL)
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


def test_curves_are_drawn_with_spread_noise_and_held_values(tmp_path, drawn):
    curves([*trials(), *confirmation({-1: 0.2, 0: 0.35}, 3)], GOAL, tmp_path)
    figure = drawn[0]
    assert len(figure.axes) == 2
    thin = [line for line in figure.axes[0].lines if line.get_linewidth() < 1 and line.get_alpha()]
    assert len(thin) == 6
    for words in (
        "What each recipe reaches within 10 training seconds",
        "value held",
        "± 2 standard errors",
        "chance, 0.5",
        "val_accuracy",
    ):
        assert words in texts(figure)
    assert not any(axes.get_legend() for axes in figure.axes)  # it is below them


def test_with_a_target_the_axis_ends_where_the_last_one_did(tmp_path, drawn):
    runs = [
        record(number, 0.45, speed=6 + number, goal=TARGET, batch_size=32 * 2**number)
        for number in range(3)
    ]
    curves(runs, TARGET, tmp_path)
    furthest = max(one.outcome.train_seconds for one in runs)
    assert furthest < 5
    assert drawn[0].axes[0].get_xlim()[1] == pytest.approx(furthest, rel=0.05)
    assert "target, 0.8" in texts(drawn[0])
    assert "How soon each recipe holds val_accuracy 0.8" in texts(drawn[0])
    figures.draw_batches(
        batch_infos([*runs, record(3, 0.1, goal=TARGET)], TARGET, 400), TARGET, tmp_path / "b.png"
    )
    assert "training seconds until val_accuracy 0.8 is held" in texts(drawn[1])
    assert "not held within the horizon" in texts(drawn[1])
    info = batch_infos(runs, TARGET, 400)[0]
    assert info.value == runs[0].outcome.train_seconds
    assert info.error / info.value == pytest.approx(
        score_error(runs[0].outcome, TARGET, 400) / runs[0].score
    )


def test_points_over_batch_size_have_noise_and_no_line(tmp_path, drawn):
    infos = batch_infos(trials(), GOAL, 400)
    assert [(info.batch_size, info.baseline) for info in infos] == [
        (32, True),
        (32, False),
        (64, False),
        (128, False),
    ]
    assert infos[0].optimizer == "the model's own"
    assert batch_infos(trials(), GOAL, 400, "AdamW")[0].optimizer == "AdamW, the model's own"
    figures.draw_batches(infos, GOAL, tmp_path / "b.png")
    left, right = drawn[0].axes
    assert not [
        line
        for line in (*left.lines, *right.lines)
        if len(line.get_xdata()) > 1 and line.get_linestyle() != "None" and line.get_linewidth()
    ]
    assert len(left.collections) >= 4  # error bars
    assert "Each recipe once" in texts(drawn[0])
    assert "± 2 standard errors" in texts(drawn[0])


@pytest.mark.parametrize(
    ("records", "goal", "examples"),
    [
        ([], GOAL, 400),
        ([failed(record(0, 0.1))], GOAL, 400),
        ([record(0, 0.3)], GOAL, 400),
        ([record(-1, 0.3, "baseline")], GOAL, 0),
        (trials(LOSS, 2.0), LOSS, 400),
        (trials(TARGET, 0.4), TARGET, 400),
        ([*trials(TARGET, 0.4), *confirmation({-1: 0.45, 0: 0.4}, 2, goal=TARGET)], TARGET, 400),
        ([*trials(), *[failed(one) for one in confirmation({-1: 0.45, 0: 0.4}, 2)]], GOAL, 400),
    ],
    ids=[
        "nothing",
        "failed",
        "one trial",
        "baseline",
        "regression",
        "target",
        "target confirmed",
        "confirmation failed",
    ],
)
def test_every_kind_of_search_is_drawn(records, goal, examples, tmp_path, drawn):
    curves(records, goal, tmp_path, examples)
    figures.draw_batches(batch_infos(records, goal, examples), goal, tmp_path / "batches.png")
    for name in ("curves.png", "batches.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "accuracy" not in texts(drawn[0]) or goal.metric == "val_accuracy"
    if not any(one.outcome.curve for one in records):
        assert "nothing was measured yet" in texts(drawn[0])


def test_every_plan_is_labelled_and_the_limit_is_a_line(tmp_path, drawn):
    infos = [
        plan_figure.PlanInfo("none", 100e6, 0.0),
        plan_figure.PlanInfo("minimal", 60e6, 0.05),
        plan_figure.PlanInfo("budget:0.50", 40e6, 0.3),
    ]
    plan_figure.draw_plans(infos, "model", tmp_path / "a.png")
    assert all(info.name in texts(drawn[0]) for info in infos)
    plan_figure.draw_plans(infos, "model", tmp_path / "b.png", room_bytes=70e6)
    assert "what the limit leaves, 70 MB" in texts(drawn[1])
    plan_figure.draw_plans(infos, "model", tmp_path / "c.png", room_bytes=1e9)
    assert drawn[2].axes[0].get_ylim()[1] < 200
    for figure in drawn:
        frame = figure.get_window_extent()
        for text in figure.axes[0].texts:
            box = text.get_window_extent()
            assert frame.x0 <= box.x0
            assert box.x1 <= frame.x1


def test_a_trial_that_was_not_measured_is_no_point():
    one = record(0, 0.3)
    assert batch_infos([dataclasses.replace(one, outcome=failed(one).outcome)], GOAL, 400) == []
