"""The five studies: their cells, and their verdicts on rows with known answers."""

import pytest
from study_frames import joined, rows

from kbatch.results.charts.study_groups import group_points
from kbatch.studies import (
    augmentation,
    generalisation,
    optimizers,
    study_page,
    techniques,
    throughput,
)
from kbatch.studies.catalogue import STUDIES
from kbatch.studies.cell import CROPPED

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


def found(study, frame):
    return [verdict.found for verdict in study.verdicts(frame)]


def test_training_data_that_choose_another_batch_are_told():
    epochs = joined(
        rows({16: 0.7, 128: 0.6}, group="sgd"),
        rows({16: 0.7, 128: 0.6}, group="adam"),
    )
    epochs.loc[epochs.batch_size == 128, "train_accuracy"] = 0.99
    timed = joined(
        rows({16: 0.7, 128: 0.6}, "seconds", "sgd"),
        rows({16: 0.6, 128: 0.7}, "seconds", "adam"),
    )
    frame = joined(epochs, timed)
    assert found(optimizers, frame) == ["does not hold here", "holds", "holds in part"]
    assert "adam: 16 at equal epochs, 128 at equal time" in optimizers.verdicts(frame)[2].evidence
    assert found(optimizers, epochs)[2] == "not measured here"


@pytest.mark.parametrize(
    ("published", "wanted"),
    [
        ({16: 0.6, 128: 0.7}, "holds"),
        ({16: 0.7, 128: 0.6}, "holds in part"),
    ],
)
def test_augmentation_moves_the_best_batch_or_not(published, wanted):
    frame = joined(
        rows({16: 0.7, 128: 0.6}, group=augmentation.STANDARD),
        rows(published, group=augmentation.PUBLISHED),
    )
    assert found(augmentation, frame) == [wanted, "not measured here"]


def test_the_falling_accuracy_and_its_two_explanations():
    falling = joined(
        rows({16: 0.8, 1024: 0.6}),
        rows({16: 0.8, 1024: 0.6}, "updates"),
        rows({16: 0.8}, "seconds"),
    )
    assert found(generalisation, falling) == ["holds", "does not hold here", "does not hold here"]
    level = joined(rows({16: 0.8, 1024: 0.8}), rows({16: 0.8, 1024: 0.8}, "updates"))
    level.loc[level.batch_size == 1024, "train_accuracy"] = 1.0
    assert found(generalisation, level) == ["does not hold here", "holds", "holds"]
    assert found(generalisation, rows({16: 0.8})) == 3 * ["not measured here"]


def test_the_smallest_fast_batch_and_the_ratio():
    frame = joined(
        rows({16: 0.5}, step_seconds=0.016),
        rows({128: 0.5}, step_seconds=0.026),
        rows({1024: 0.5}, step_seconds=0.2),
    )
    table = throughput.tables(frame)[0]
    assert table.frame["examples/s"].tolist() == ["1,000 ± 0", "4,923 ± 0", "5,120 ± 0"]
    assert "is 128" in table.note
    assert found(throughput, frame) == ["does not hold here"]
    assert found(throughput, frame[frame.batch_size < 1024]) == ["not measured here"]


def test_the_ladder_says_epoch_seconds_and_the_best_epoch():
    frame = joined(
        rows({8: 0.6}, group=techniques.PLAIN, seeds=[0]),
        rows({40: 0.7}, group=techniques.COMBINED, seeds=[0]),
    )
    lines = techniques.tables(frame)[0].frame
    assert lines["s/epoch"].tolist() == ["2.0", "2.0"]
    assert lines["its epoch"].tolist() == ["2.5", "2.5"]
    assert found(techniques, frame) == ["holds"]


@pytest.mark.parametrize("name", STUDIES)
def test_cells_without_a_value_break_no_table(name):
    study = STUDIES[name]
    frame = rows(dict.fromkeys((8, 16, 64, 1024), 0.5), unit="epochs", ended="out_of_memory")
    columns = ["val_accuracy", "train_accuracy", "test_accuracy", "best_accuracy", "best_share"]
    columns += ["train_seconds", "step_seconds", "peak_bytes"]
    frame[columns] = float("nan")
    assert all(table.markdown() for table in study.tables(frame))
    assert {verdict.found for verdict in study.verdicts(frame)} <= {"not measured here"}


def test_a_chart_has_means_with_their_standard_errors():
    frame = joined(
        rows({16: 0.6, 64: 0.7}, group="sgd"),
        rows({16: 0.5}, group="adam", seeds=[0]),
        rows({16: 0.5}, "seconds", group="adam"),
    )
    frame.loc[frame.batch_size == 64, "val_accuracy"] = [float("nan"), 0.7]
    charts = study_page.charts_of(STUDIES["optimizers"], frame)
    assert [chart.name for chart in charts] == ["optimizers-epochs", "optimizers-seconds"]
    points = group_points(frame[frame.unit == "epochs"], "val_accuracy")
    assert [(point.group, point.at, point.seeds) for point in points] == [
        ("sgd", 16, 2),
        ("sgd", 64, 1),
        ("adam", 16, 1),
    ]
    assert points[0].mean == pytest.approx(0.6005)
    assert points[0].high - points[0].mean == pytest.approx(0.0005)  # 0.001 / sqrt(2) / sqrt(2)
    assert study_page.charts_of(STUDIES["techniques"], frame) == []


def test_more_groups_than_colours_differ_in_shape():
    frame = joined(*(rows({16: 0.6, 64: 0.7}, group=name) for name in augmentation.GROUPS))
    chart = study_page.charts_of(STUDIES["augmentation"], frame)[0]
    marks = chart.spec()["layer"][2]["encoding"]
    looks = zip(marks["color"]["scale"]["range"], marks["shape"]["scale"]["range"], strict=True)
    assert len(set(looks)) == len(augmentation.GROUPS) == 9
