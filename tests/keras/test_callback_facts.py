"""What a project remembers of callbacks, and what it refuses by name."""

import keras
import pytest

from kbatch.errors import ProjectChangedError
from kbatch.records.project import Project
from kbatch.training import arguments

SCHEDULER, STOPPING = keras.callbacks.LearningRateScheduler, keras.callbacks.EarlyStopping


class Project(Project):
    """A project that holds a record."""

    def __init__(self, directory):
        super().__init__(directory)
        self.store.records = lambda: ["a record"]


def scaled(factor):
    return lambda epoch, rate: rate * factor


def halved(epoch, rate):
    return sum(rate * each for each in (0.2, 0.3))


class Own(keras.callbacks.Callback):
    def __init__(self, strength=1.0):
        super().__init__()
        self._strength = strength


EQUAL = {
    "none": lambda: [],
    "a schedule": lambda: [SCHEDULER(scaled(0.1))],
    "a function with another inside": lambda: [SCHEDULER(halved)],
    "stopping": lambda: [STOPPING("val_loss", patience=3)],
    "an own class": lambda: [Own(2.0)],
    "two in a row": lambda: [STOPPING(patience=3), Own()],
}
OTHER = {
    "one is missing": ([STOPPING()], [], "no EarlyStopping"),
    "one is new": ([], [Own()], "Own, which it did not have"),
    "one is another": ([STOPPING()], [Own()], "no EarlyStopping; Own, which"),
    "one of two": ([STOPPING(), STOPPING()], [STOPPING()], "no EarlyStopping"),
    "patience": ([STOPPING(patience=3)], [STOPPING(patience=4)], "patience was 3 and is now 4"),
    "a number held": ([SCHEDULER(scaled(0.1))], [SCHEDULER(scaled(0.5))], "Scheduler with other"),
    "an own setting": ([Own(1.0)], [Own(2.0)], "Own with .* strength was 1.0 and is now 2.0"),
}
LOOKING_ON = (keras.callbacks.TensorBoard("logs"),)


@pytest.mark.parametrize("case", EQUAL)
def test_equal_callbacks_agree(case, tmp_path):
    project = Project(tmp_path)
    arguments.agree_on_callbacks(project, EQUAL[case]())
    arguments.agree_on_callbacks(project, EQUAL[case]())


@pytest.mark.parametrize("case", OTHER)
def test_others_are_refused_by_name(case, tmp_path):
    before, now, text = OTHER[case]
    project = Project(tmp_path)
    arguments.agree_on_callbacks(project, before)
    with pytest.raises(ProjectChangedError, match=text):
        arguments.agree_on_callbacks(project, now)


def test_what_only_looks_on_may_come_and_go(tmp_path):
    project = Project(tmp_path)
    arguments.agree_on_callbacks(project, [*LOOKING_ON, STOPPING()])
    arguments.agree_on_callbacks(project, [STOPPING()])
    assert arguments.callback_names(project.facts()["callbacks"]) == "EarlyStopping"


def test_used_files_and_folders_are_not_compared(tmp_path):
    project = Project(tmp_path)
    arguments.agree_on_callbacks(project, [keras.callbacks.CSVLogger("/one/log.csv")])
    arguments.agree_on_callbacks(project, [keras.callbacks.CSVLogger("/other/log.csv")])
