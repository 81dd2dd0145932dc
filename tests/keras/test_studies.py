"""The five studies: their cells, and their verdicts on rows with known answers."""

import numpy as np
import pytest
from study_frames import joined, measured, rows

from kbatch.canvas import group_points
from kbatch.studies import (
    augmentation,
    generalisation,
    optimizers,
    study_run,
    techniques,
    throughput,
)
from kbatch.studies.cell import CROPPED
from kbatch.studies.study_run import STUDIES

LARGEST = dict.fromkeys(techniques.RUNGS, 8)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("quick", [False, True])
def test_every_cell_is_a_training_of_its_own(name, quick):
    study = STUDIES[name]
    setting = study.quick if quick else study.published
    cells = [*study.cells(setting, LARGEST), *study.timed_cells(setting, 9.5)]
    assert len({cell.job().key for cell in cells}) == len(cells) > 1
    assert len({cell.seed for cell in cells}) == setting.seeds
    assert setting.quick == quick


def test_the_published_optimizers_are_all_cells():
    cells = optimizers.cells(optimizers.STUDY.published, {})
    sizes = {(cell.group, cell.recipe.batch_size) for cell in cells}
    assert sizes == {(name, size) for name in ("sgd", "adam") for size in (16, 32, 64, 128)}
    assert {str(cell.length) for cell in cells} == {"5 epochs"}


def test_crops_are_added_to_one_group_only():
    cells = augmentation.cells(augmentation.STUDY.published, {})
    assert {cell.group for cell in cells if cell.data == CROPPED} == {augmentation.PUBLISHED}
    assert {cell.recipe.training for cell in cells} == {"plain", "sam:0.05", "proximal:0.1"}


def test_every_technique_trains_at_its_largest_batch():
    largest = {name: 5 + index for index, name in enumerate(techniques.RUNGS)}
    for cell in techniques.cells(techniques.STUDY.published, largest):
        assert cell.recipe.examples_per_pass == largest[cell.group]
        assert cell.environment["TF_CUDNN_USE_AUTOTUNE"] in ("0", "1")
        assert cell.isolated
        accumulates = cell.recipe.accumulation_steps == 4
        assert accumulates == (cell.group.startswith("accumulation") or cell.group == "combined")


def found(study, frame, **more):
    return [verdict.found for verdict in study.verdicts(measured(frame, **more))]


HOLDS, PART, NOT = "holds", "holds in part", "does not hold here"
OPEN, LACKING = "not decided here", "not measured here"


def of_optimizers(sgd, adam, adam_timed=None, **more):
    """Rows at equal epochs and at equal time."""
    timed = adam if adam_timed is None else adam_timed
    return joined(
        rows(sgd, "epochs", "sgd", **more),
        rows(adam, "epochs", "adam", **more),
        rows(sgd, "seconds", "sgd", **more),
        rows(timed, "seconds", "adam", **more),
    )


def test_training_data_that_choose_another_batch_are_told():
    down, up = {16: 0.7, 128: 0.6}, {16: 0.6, 128: 0.7}
    frame = of_optimizers(down, down, up)
    assert found(optimizers, frame) == [HOLDS, HOLDS, PART]
    frame.loc[frame.batch_size == 128, "train_accuracy"] = 0.99
    assert found(optimizers, frame) == [NOT, HOLDS, PART]
    said = [verdict.evidence for verdict in optimizers.verdicts(measured(frame))]
    assert "batch 128 is chosen: 0.601 ± 0.001 at batch 128, 0.701 ± 0.001 at batch 16" in said[0]
    assert "adam, by epochs and at equal time: batch 16 is chosen: 0.601" in said[2]
    assert found(optimizers, frame[frame.unit == "epochs"])[2] == LACKING


def test_ties_and_noise_decide_nothing():
    level = {16: 0.7, 64: 0.7}
    frame = of_optimizers(level, level)
    assert found(optimizers, frame) == [OPEN] * 3
    assert "batch 16 = 64 is chosen" in optimizers.verdicts(measured(frame))[0].evidence
    apart = {16: 0.71, 64: 0.7}  # one point, where 400 pictures tell two
    assert found(optimizers, of_optimizers(apart, apart), pictures=400) == [OPEN] * 3
    assert found(optimizers, of_optimizers(apart, apart)) == [HOLDS] * 3


def test_what_learned_nothing_decides_nothing():
    guessed = {16: 0.5, 64: 0.45}
    frame = of_optimizers(guessed, guessed)
    assert found(optimizers, frame) == [OPEN] * 3
    assert "neither is above chance" in optimizers.verdicts(measured(frame))[1].evidence


def test_training_data_that_tell_no_size_choose_none():
    frame = of_optimizers({16: 0.7, 64: 0.6}, {16: 0.7, 64: 0.6})
    frame["train_accuracy"] = 1.0
    assert found(optimizers, frame)[0] == OPEN


def test_fewer_than_three_seeds_decide_nothing():
    frame = of_optimizers({16: 0.9, 64: 0.6}, {16: 0.9, 64: 0.6}, seeds=(0, 1))
    assert found(optimizers, frame) == [OPEN] * 3
    said = optimizers.verdicts(measured(frame))[1].evidence
    assert "± 0.001 at batch 16" in said
    assert "fewer than 3 seeds decide nothing" in said


def column(shown, heading):
    place = list(shown.table.headings).index(heading)
    return [row[place] for row in shown.table.rows]


def best_lines(frame, **more):
    table = optimizers.tables(measured(frame, **more))[-1]
    assert table.title == "Best batch of each optimizer"
    return [list(line) for line in table.table.rows]


def test_the_best_batch_of_each_optimizer_has_a_table():
    frame = of_optimizers({16: 0.71, 32: 0.7, 64: 0.6}, {16: 0.6, 64: 0.7, 128: float("nan")})
    lines = best_lines(frame, pictures=400)
    assert lines[0] == ["sgd", "5 epochs", "16", "0.711 ± 0.001", "32"]
    assert lines[1] == ["adam", "5 epochs", "64", "0.701 ± 0.001", "none; 128 has no value"]
    assert [line[:2] for line in lines[2:]] == [["sgd", "5 seconds"], ["adam", "5 seconds"]]
    assert best_lines(frame)[0][-1] == "none"


def test_the_best_batch_of_one_seed_is_not_compared():
    lines = best_lines(rows({16: 0.7, 64: 0.7, 128: 0.6}, group="sgd", seeds=[0]))
    assert lines == [["sgd", "5 epochs", "16 = 64", "0.700", "1 seed: not compared"]]
    failed = rows({16: float("nan")}, group="sgd")
    assert best_lines(failed) == [["sgd", "5 epochs", "–", "–", "–"]]


@pytest.mark.parametrize(
    ("published", "wanted"),
    [({16: 0.6, 128: 0.7}, HOLDS), ({16: 0.7, 128: 0.6}, NOT), ({16: 0.7, 128: 0.7}, OPEN)],
)
def test_augmentation_moves_the_best_batch_or_not(published, wanted):
    frame = joined(
        rows({16: 0.7, 128: 0.6}, group=augmentation.STANDARD),
        rows(published, group=augmentation.PUBLISHED),
    )
    assert found(augmentation, frame) == [wanted, LACKING]


def test_augmentation_of_what_learned_nothing_moves_nothing():
    level = dict.fromkeys(augmentation.SIZES, 0.5)
    frame = joined(*(rows(level, group=name) for name in augmentation.GROUPS))
    assert found(augmentation, frame) == [OPEN, LACKING]


def test_the_falling_accuracy_and_its_two_explanations():
    falling = joined(
        rows({16: 0.8, 1024: 0.6}),
        rows({16: 0.8, 1024: 0.6}, "updates"),
        rows({16: 0.8}, "seconds"),
    )
    assert found(generalisation, falling) == [HOLDS, OPEN, NOT]
    level = joined(rows({16: 0.8, 1024: 0.8}), rows({16: 0.8, 1024: 0.8}, "updates"))
    level.loc[level.batch_size == 1024, "train_accuracy"] = 1.0
    assert found(generalisation, level) == [OPEN, HOLDS, HOLDS]
    assert found(generalisation, rows({16: 0.8})) == 3 * [LACKING]
    rising = rows({16: 0.7, 1024: 0.8})
    assert found(generalisation, rising)[0] == NOT


def test_a_largest_batch_that_failed_is_not_measured():
    frame = rows({16: 0.7, 64: 0.6, 1024: float("nan")})
    assert found(generalisation, frame)[:2] == [LACKING, LACKING]
    assert "batch 1024 has no value" in generalisation.verdicts(measured(frame))[0].evidence


@pytest.mark.parametrize("spread", [0.0, 0.09])
def test_a_loss_that_noise_hides_is_no_equality(spread):
    frame = rows({16: 0.8, 1024: 0.7}, "updates")
    largest = frame.batch_size == 1024
    frame.loc[largest, "val_accuracy"] = [0.7 - spread, 0.7, 0.7 + spread]
    assert found(generalisation, frame)[2] == (OPEN if spread else NOT)


def test_pure_noise_holds_seldom():
    random = np.random.default_rng(0)
    decided = 0
    for _ in range(100):
        frame = rows(dict.fromkeys(generalisation.SIZES, 0.7))
        frame["val_accuracy"] = 0.7 + random.normal(0, 0.02, len(frame))
        decided += found(generalisation, frame, pictures=400)[0] != OPEN
    assert decided <= 5


def test_the_smallest_fast_batch_and_the_ratio():
    frame = joined(
        rows({16: 0.5}, step_seconds=0.016),
        rows({128: 0.5}, step_seconds=0.026),
        rows({1024: 0.5}, step_seconds=0.2),
    )
    table = throughput.tables(measured(frame))[0]
    assert column(table, "examples/s") == ["1,000 ± 0", "4,923 ± 0", "5,120 ± 0"]
    assert "is 128" in table.note
    assert found(throughput, frame) == [NOT]
    assert found(throughput, frame[frame.batch_size < 1024]) == [LACKING]
    assert found(throughput, frame[frame.seed < 2]) == [OPEN]
    slow = frame.assign(step_seconds=frame.step_seconds * (1 + 3 * (frame.seed == 0)))
    slow.loc[slow.batch_size == 1024, "step_seconds"] = 0.2
    assert column(throughput.tables(measured(slow))[0], "of best") == ["15%", "72%", "100%"]
    noisy = frame.assign(step_seconds=frame.step_seconds * (1 + 0.5 * (frame.seed == 0)))
    noisy.loc[noisy.batch_size == 1024, "step_seconds"] /= 1.8
    assert found(throughput, noisy) == [OPEN]
    frame.loc[frame.batch_size == 1024, "step_seconds"] = 0.1
    assert found(throughput, frame) == [HOLDS]


def test_a_quick_study_claims_nothing_and_keeps_its_numbers():
    frame = rows({16: 0.8, 1024: 0.6})
    page = study_run.markdown(STUDIES["generalisation"], measured(frame, quick=True), [], [])
    said = page.split("## What was published")[1]
    assert said.count("**Not decided here**: a quick study claims nothing. ") == 3
    assert "0.601 ± 0.001 at batch 1024" in said
    assert "olds" not in said.replace("does not hold", "")


def ladder(plain, combined, **more):
    """Rows without techniques and with all of them, by the largest pass of each."""
    return joined(
        rows({plain: 0.6}, group=techniques.PLAIN, seeds=[0], **more),
        rows({4 * combined: 0.7}, group=techniques.COMBINED, seeds=[0], **more).assign(
            micro_batch_size=combined
        ),
    )


def test_the_ladder_says_epoch_seconds_and_the_best_epoch():
    frame = ladder(8, 10)
    lines = techniques.tables(measured(frame))[0]
    assert column(lines, "one pass") == ["8", "10"]
    assert column(lines, "batch") == ["8", "40"]
    assert column(lines, "s/epoch") == ["2.0", "2.0"]
    assert column(lines, "its epoch") == ["2.5", "2.5"]
    begun = ladder(8, 10, best_share=0.0)
    assert column(techniques.tables(measured(begun))[0], "its epoch") == ["0.0", "0.0"]


def test_the_largest_batch_is_found_with_what_is_trained():
    found = techniques.rungs(techniques.STUDY.published)
    largest = dict.fromkeys(found, 8)
    cells = techniques.cells(techniques.STUDY.published, largest)
    assert {cell.group for cell in cells} == found.keys()
    for cell in cells:
        rung = found[cell.group]
        # gradients that are added up take memory of their own
        assert rung.accumulation_steps == cell.recipe.accumulation_steps
        assert (rung.policy, rung.recompute) == (cell.recipe.policy, cell.recipe.recompute)
    assert sum(rung.accumulation_steps > 1 for rung in found.values()) == 2


@pytest.mark.parametrize(
    ("combined", "wanted"), [(7, [NOT, NOT]), (8, [HOLDS, NOT]), (32, [HOLDS, HOLDS])]
)
def test_the_techniques_are_told_from_accumulation(combined, wanted):
    frame = ladder(8, combined)
    assert found(techniques, frame) == wanted
    assert f"in one pass: 8 -> {combined} (" in techniques.verdicts(measured(frame))[1].evidence


def test_sizes_at_the_ceiling_are_marked_and_decide_nothing():
    frame = ladder(8, 60)
    results = measured(frame, pictures=240)
    table = techniques.tables(results)[0]
    assert column(table, "one pass") == ["8", "≥ 60"]
    assert column(table, "batch") == ["8", "≥ 240"]
    assert "at most 60 pictures" in table.note
    assert found(techniques, frame, pictures=240) == [OPEN, OPEN]
    assert found(techniques, ladder(60, 60), pictures=240) == [OPEN, OPEN]


def test_a_ladder_that_did_not_train_is_not_measured():
    frame = ladder(8, 10)
    frame.loc[1, "val_accuracy"] = float("nan")
    assert found(techniques, frame) == [LACKING, LACKING]


@pytest.mark.parametrize("name", STUDIES)
def test_cells_without_a_value_break_no_table(name):
    study = STUDIES[name]
    frame = rows(dict.fromkeys((8, 16, 64, 1024), 0.5), unit="epochs", ended="out_of_memory")
    columns = ["val_accuracy", "train_accuracy", "test_accuracy", "best_accuracy", "best_share"]
    columns += ["train_seconds", "step_seconds", "peak_bytes"]
    frame[columns] = float("nan")
    assert all(table.markdown() for table in study.tables(measured(frame)))
    assert {verdict.found for verdict in study.verdicts(measured(frame))} <= {LACKING}


def test_a_chart_has_means_with_their_standard_errors():
    frame = joined(
        rows({16: 0.6, 64: 0.7}, group="sgd", seeds=(0, 1)),
        rows({16: 0.5}, group="adam", seeds=[0]),
        rows({16: 0.5}, "seconds", group="adam"),
    )
    frame.loc[frame.batch_size == 64, "val_accuracy"] = [float("nan"), 0.7]
    charts = study_run.charts_of(STUDIES["optimizers"], frame)
    assert [chart.name for chart in charts] == ["optimizers-epochs", "optimizers-seconds"]
    points = group_points(frame[frame.unit == "epochs"], "val_accuracy")
    assert list(zip(points.group, points["at"], points.seeds, strict=True)) == [
        ("sgd", 16, 2),
        ("sgd", 64, 1),
        ("adam", 16, 1),
    ]
    assert points["mean"][0] == pytest.approx(0.6005)
    assert points.high[0] - points["mean"][0] == pytest.approx(0.0005)  # 0.001 / sqrt(2) / sqrt(2)
    assert study_run.charts_of(STUDIES["techniques"], frame) == []


def test_the_panels_of_a_figure_share_their_scale():
    frame = joined(rows({16: 0.5, 64: 0.51}), rows({16: 0.7, 64: 0.9}, "seconds", seeds=[0]))
    charts = study_run.charts_of(STUDIES["optimizers"], frame)
    scales = [
        layer["encoding"]["y"]["scale"] for chart in charts for layer in chart.spec()["layer"]
    ]
    assert len(scales) == 6
    assert all(scale == scales[0] for scale in scales)
    low, high = scales[0]["domain"]
    assert (round(low, 2), high) == (0.5, 0.9)
    frame["val_accuracy"] = float("nan")
    assert study_run.charts_of(STUDIES["optimizers"], frame) == []


def test_an_axis_of_one_value_has_room():
    charts = study_run.charts_of(STUDIES["optimizers"], rows({16: 0.5, 64: 0.5}, seeds=[0]))
    domain = charts[0].spec()["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert domain == pytest.approx([0.45, 0.55])


def test_more_groups_than_colours_differ_in_shape():
    frame = joined(*(rows({16: 0.6, 64: 0.7}, group=name) for name in augmentation.GROUPS))
    chart = study_run.charts_of(STUDIES["augmentation"], frame)[0]
    marks = chart.spec()["layer"][2]["encoding"]
    looks = zip(marks["color"]["scale"]["range"], marks["shape"]["scale"]["range"], strict=True)
    assert len(set(looks)) == len(augmentation.GROUPS) == 9
