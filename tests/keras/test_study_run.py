"""A whole study on a few tiny pictures: its records, its page, going on and being refused."""

import dataclasses
import gc
import html
import io
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from study_frames import measured, rows

from kbatch.data.case_study import split
from kbatch.errors import KbatchError
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.store import read
from kbatch.runtime import device_memory
from kbatch.studies import optimizers, study_run, techniques, trainings
from kbatch.studies.cell import Cell, Length, Setting, Wishes, frame_of
from kbatch.studies.study_run import STUDIES

of_each = trainings.first_of_each
SETTING = Setting(image_size=8, epochs=1, seeds=1, quick=True)


def pictures(seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (2, 40, 8, 8, 3), "uint8")
    images[1] //= 4  # dark, so that the classes can be told
    return split(f"tiny pictures {seed}", {"light": images[0], "dark": images[1]})


def cells(setting, largest):
    return [
        Cell("adam", Recipe(size, "adam", 0.01), Length(*length))
        for size, length in ((8, (2, "epochs")), (16, (3, "updates")), (64, (1, "epochs")))
    ]


def timed_cells(setting, seconds):
    return [cells(setting, {})[0].lasting(Length(seconds, "seconds"))]


STUDY = dataclasses.replace(optimizers.STUDY, cells=cells, timed_cells=timed_cells)


def run(folder, data=None, setting=SETTING):
    console = Console(record=True, width=150, file=io.StringIO())
    files = study_run.run(STUDY, setting, data or pictures(), folder, ["command: x"], console)
    return files, console.export_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return folder, *run(folder)


def test_each_cell_is_a_record_of_what_was_measured(made):
    records = [line.record for line in read(made[0] / "kbatch" / "records.jsonl") if line.record]
    assert [record.outcome.updates for record in records[:2]] == [2 * 6, 3]
    assert records[2].outcome.ended == "error"  # 64 of 48 examples
    assert "48 examples" in records[2].outcome.message
    assert {record.purpose for record in records} == {"study"}
    assert set(records[0].test) == {"train_accuracy", "train_loss", "accuracy", "loss"}
    assert records[3].values["seconds"] == study_run.equal_seconds(
        list(zip(cells(SETTING, {}), records, strict=False))
    )


def test_the_page_says_what_was_measured_and_published(made):
    page = made[1][-1].read_text()
    assert page.startswith("# Accuracy against batch size")
    assert "- command: x" in page
    assert "- pictures: of each class 24 to train, 8 to validate, 8 to test, 8 px, from" in page
    assert "- network: cnn\n" in page
    assert "- each training: 2 epochs or 3 updates or 1 epoch or " in page
    assert "; 1 seed of every cell\n- a quick study: " in page
    assert "Which batch size is best at equal epochs" in page
    assert "- adam, batch 64, seed 0: error" in page
    assert "## What was published" in page
    assert "3 of 4  adam: batch 64" in made[2]
    assert re.search(r"about [0-9]+ s left", made[2])


def test_the_page_in_one_file_has_the_same_and_its_charts(made):
    page = (made[0] / "study.html").read_text()
    text = html.unescape(page)
    assert "command: x" in text
    assert "adam, batch 64, seed 0: error" in text
    assert 'data-spec="spec-' in page
    assert "vegaEmbed" in page
    assert not re.search(r'(src|href)="https?:', page)
    for line in (made[0] / "study.md").read_text().splitlines():
        claim = re.match(r"- \*(.*)\* \((.*)\)$", line)
        assert claim is None or (claim[1] in text and claim[2] in text)


def test_texts_in_the_page_of_a_study_are_escaped():
    hostile = "<script>alert(1)</script>"
    page = study_run.html(optimizers.STUDY, measured(rows({16: 0.5})), [], [hostile])
    assert hostile not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_cell_has_the_value_held_and_the_last_one(made):
    cells = pd.read_csv(made[0] / "cells.csv")
    records = [line.record for line in read(made[0] / "kbatch" / "records.jsonl") if line.record]
    assert cells.last_accuracy[0] == records[0].outcome.curve[-1][1]
    assert cells.val_accuracy[0] == records[0].outcome.value
    assert "### Validation accuracy held within 2 epochs or 1 epoch" in made[1][-1].read_text()
    assert cells.micro_batch_size.tolist() == [8, 16, 64, 8]


def test_the_page_of_techniques_names_the_memory_limit():
    frame = rows({8: 0.6}, group=techniques.PLAIN, memory_limit=2 * 10**9, environment="A=1")
    results = measured(frame, memory_limit=2 * 10**9)
    assert "- memory limit: 2,000 MB\n" in study_run.markdown(techniques.STUDY, results, [], [])
    free = measured(frame.assign(memory_limit=None))
    assert "- memory limit: all that" in study_run.markdown(techniques.STUDY, free, [], [])


@pytest.mark.parametrize("name", STUDIES)
def test_no_question_has_numbers_of_a_setting(name):
    for words in (r"\d+ epochs", r"\d+ pictures", "ResNet50", "case study"):
        assert not re.search(words, STUDIES[name].question)


def test_the_same_study_trains_nothing_twice(made, monkeypatch):
    before = (made[0] / "kbatch" / "records.jsonl").read_bytes()
    monkeypatch.setattr(trainings, "trained", None)
    files, said = run(made[0])
    assert said.count("(from its record)") == 4
    assert (made[0] / "kbatch" / "records.jsonl").read_bytes() == before
    assert files[-1].read_text() == made[1][-1].read_text()


@pytest.mark.parametrize("other", ["data", "setting"])
def test_other_data_or_another_setting_are_refused(made, other):
    with pytest.raises(KbatchError, match=r"pictures|setting"):
        if other == "data":
            run(made[0], pictures(1))
        else:
            run(made[0], setting=dataclasses.replace(SETTING, epochs=9))


def test_more_seeds_go_on_with_what_was_trained(tmp_path, monkeypatch):
    lengths = []

    def trained(cell, image_size, data):
        lengths.append((cell.seed, cell.length.unit, cell.length.amount))
        return Outcome("horizon", train_seconds=1.0 + 5 * cell.seed), {}

    def seeded(cells):
        return lambda setting, known: [
            dataclasses.replace(cell, seed=seed)
            for seed in range(setting.seeds)
            for cell in cells(setting, known)
        ]

    monkeypatch.setattr(trainings, "trained", trained)
    study = dataclasses.replace(STUDY, cells=seeded(cells), timed_cells=seeded(timed_cells))
    monkeypatch.setitem(run.__globals__, "STUDY", study)
    run(tmp_path)
    begun, seconds = len(lengths), lengths[-1][2]
    said = run(tmp_path, setting=dataclasses.replace(SETTING, seeds=3))[1]
    assert said.count("(from its record)") == begun + 1  # of the batch above the data
    assert {seed for seed, *_ in lengths[begun:]} == {1, 2}
    assert {each[2] for each in lengths if each[1] == "seconds"} == {seconds}
    assert run(tmp_path)[1].count("(from its record)") == begun + 1


def altered(part):
    """The tiny pictures, one of which has another pixel in a part."""
    data = pictures()
    images, labels = getattr(data, part)
    images = images.copy()
    images[3, 0, 0, 0] += 1
    return dataclasses.replace(data, **{part: (images, labels)})


@pytest.mark.parametrize(
    ("part", "named"), [("train", "training"), ("validation", "validation"), ("test", "test")]
)
def test_other_pictures_of_the_same_name_are_refused(made, part, named):
    with pytest.raises(KbatchError, match=rf"values or order of data\.{named} are not") as refused:
        run(made[0], altered(part))
    assert "pictures" not in str(refused.value)


def test_pictures_that_a_quick_study_leaves_out_may_differ(made, monkeypatch):
    monkeypatch.setattr(trainings, "first_of_each", lambda data, most: of_each(data, 6))
    first = trainings.Trainings(study_run.Project(made[0]), SETTING, pictures()).facts()
    data = pictures()
    data.train[0][23] += 1  # of 24 of the class
    assert trainings.Trainings(study_run.Project(made[0]), SETTING, data).facts() == first
    assert first["training"]["examples"] == 12


def test_another_device_is_refused(made, monkeypatch):
    monkeypatch.setattr(study_run.device_memory, "device_words", lambda: "NVIDIA Future")
    with pytest.raises(KbatchError, match=r"device was .* and is now 'NVIDIA Future'"):
        run(made[0])


def test_a_folder_begun_before_goes_on_and_is_told_apart(made, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(made[0], old)
    file = old / "kbatch" / "project.json"
    facts = json.loads(file.read_text())
    del facts["data"], facts["device"]
    file.write_text(json.dumps(facts))
    assert run(old)[1].count("(from its record)") == 4
    assert json.loads(file.read_text()).keys() >= {"data", "device"}
    with pytest.raises(KbatchError, match="values or order of data"):
        run(old, altered("train"))


def test_the_models_of_cells_are_freed():
    held = []
    for _ in range(3):
        gc.collect()
        held.append(device_memory.bytes_now())
        trainings.trained(cells(SETTING, {})[0], 8, pictures())
    assert held[2] < held[1] + 200_000  # a model with Adam's slots has 800,000


def test_ctrl_c_loses_nothing_that_ended(tmp_path, monkeypatch):
    calls = []

    def stopped(cell, image_size, data):
        calls.append(cell)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Outcome("horizon", train_seconds=1.0), {}

    monkeypatch.setattr(trainings, "trained", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    run(tmp_path)
    assert [cell.recipe.batch_size for cell in calls] == [8, 16, 16, 8]


def test_a_cell_apart_has_its_own_environment_and_limit(tmp_path):
    cell = Cell(
        "apart",
        Recipe(8, "sgd", 0.01),
        Length(2, "updates"),
        memory_limit=300 << 20,
        environment={"TF_CUDNN_USE_AUTOTUNE": "0", "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
    project = study_run.Project(tmp_path)
    with project.hold():
        record = trainings.Trainings(project, SETTING, pictures()).record(cell)
    assert record.outcome.updates == 2
    assert record.outcome.peak_bytes > 0
    assert record.values["TF_CUDNN_USE_AUTOTUNE"] == "0"
    assert record.values["memory_limit"] == 300 << 20


def test_ctrl_c_keeps_the_largest_batches_found(tmp_path, monkeypatch):
    calls, rungs = [], {name: Recipe(1, "sgd", 0.01) for name in ("none", "mixed", "both")}

    def finder(*args, ceiling, **more):
        calls.append(ceiling)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return SimpleNamespace(batch_size=10 + len(calls))

    def find():
        with project.hold():
            return trainings.largest_batches(
                rungs, "small-resnet", SETTING, 48, project, Console(file=io.StringIO())
            )

    project = study_run.Project(tmp_path)
    monkeypatch.setattr(trainings, "find_max_batch", finder)
    with pytest.raises(KeyboardInterrupt):
        find()
    assert find() == find() == {"none": 11, "mixed": 13, "both": 14}
    assert calls == [12] * 4


def test_a_cell_apart_says_its_environment_and_limit():
    cell = Cell("a", Recipe(8), Length(1, "epochs"), memory_limit=9, environment={"A": "1"})
    row = frame_of([(cell, cell.job().record(Outcome("horizon"), 0.0))]).iloc[0]
    assert (row.environment, row.memory_limit) == ("A=1", 9)


def test_crops_come_behind_the_pictures_and_are_parts_of_them():
    images = np.zeros((3, 20, 20, 3), "uint8")
    images[1], images[2] = 200, np.arange(20)[:, None, None]
    more, labels = trainings.with_crops(images, np.array([0, 1, 1]))
    assert more.shape == (6, 20, 20, 3)
    assert labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert (more[:3] == images).all()
    assert (more[3] == 0).all()
    assert (more[4] == 200).all()
    steps = np.diff(more[5][:, 0, 0].astype(int))
    assert set(steps) <= {0, 1}  # stretched by 1.25: a step of 1 every 1.25 rows
    assert 14 <= steps.sum() <= 17


def test_the_first_pictures_of_each_class_are_kept():
    few = trainings.first_of_each(pictures(), 6)
    assert [len(labels) for _, labels in (few.train, few.validation, few.test)] == [12, 4, 4]
    assert np.bincount(few.train[1]).tolist() == [6, 6]
    assert (few.train[0][:6] == pictures().train[0][:6]).all()


def pair(seconds, unit="epochs", ended="horizon"):
    cell = Cell("adam", Recipe(16), Length(2, unit))
    return cell, cell.job().record(Outcome(ended, train_seconds=seconds), 0.0)


def test_equal_time_is_the_median_of_equal_epochs():
    assert study_run.equal_seconds([pair(1.0), pair(2.0)]) == 1.5
    others = [pair(90.0, "updates"), pair(80.0, ended="out_of_memory"), pair(70.0, ended="nan")]
    assert study_run.equal_seconds([pair(1.2345), *others]) == 1.23
    assert study_run.equal_seconds(others) == study_run.PLACE


def test_equal_time_stays_once_a_cell_has_it(made, tmp_path, monkeypatch):
    old = tmp_path / "old"
    shutil.copytree(made[0], old)
    monkeypatch.setattr(study_run, "equal_seconds", lambda pairs: 99.0)
    assert run(old)[1].count("(from its record)") == 4


def test_a_page_of_two_comparisons_has_its_tables():
    assert len(frame_of([])) == 0
    page = study_run.markdown(optimizers.STUDY, measured(rows({16: 0.5})), [], [])
    assert page.count("###") == 4


@pytest.mark.parametrize(
    ("wishes", "said"),
    [({"seeds": 0}, "--seeds must be"), ({"image_size": 4}, "--image-size"), ({"epochs": -1}, "5")],
)
def test_wishes_out_of_range_are_refused(wishes, said):
    with pytest.raises(KbatchError, match=r"at least") as refused:
        Wishes(**wishes).applied(SETTING, STUDY.takes)
    assert said in str(refused.value) or "--epochs" in str(refused.value)


@pytest.mark.parametrize("name", STUDIES)
def test_each_study_has_a_least_image_size(name):
    study = STUDIES[name]
    least = {"techniques": 32}.get(name, 8)
    assert study.least_image_size == least
    wished = Wishes(image_size=least).applied(study.published, study.takes, least)
    assert wished.image_size == least
    with pytest.raises(KbatchError, match=f"--image-size must be at least {least} and"):
        Wishes(image_size=least - 1).applied(study.published, study.takes, least)


def test_resnet50_takes_the_least_image_size():
    assert trainings.network("resnet50", techniques.STUDY.least_image_size).count_params() > 10**7


def test_wishes_replace_the_numbers_of_the_study():
    wished = Wishes(seeds=5, memory_limit=10**9).applied(SETTING, ["seeds", "memory_limit"])
    assert (wished.seeds, wished.memory_limit, wished.epochs) == (5, 10**9, 1)
    assert json.dumps(vars(wished))


@pytest.mark.parametrize(
    ("name", "wishes"),
    [("optimizers", {"memory_limit": 10**9}), ("throughput", {"epochs": 3})],
)
def test_a_wish_that_would_change_nothing_is_refused(name, wishes):
    study = STUDIES[name]
    with pytest.raises(KbatchError, match="it would change nothing here"):
        Wishes(**wishes).applied(study.published, study.takes)
