"""The end of an epoch: the seconds of callbacks and checkpoint, on a time that only tests move."""

from types import SimpleNamespace

import pytest

from kbatch.callbacks.horizon import EpochEnd
from kbatch.testing import FakeTime


class FakeHorizon:
    def __init__(self, now):
        self.now, self.validation_seconds, self.finished = now, 0.0, False
        self.model = SimpleNamespace(stop_training=False)

    def on_epoch_end(self, epoch, logs):
        self.now.sleep(0.5)
        self.validation_seconds += 0.5
        self.finished = True


@pytest.fixture
def now():
    return FakeTime(100.0)


def ended(end, now, users=0.0, checkpoint=0.0):
    end.before.on_epoch_end(0, {})
    now.sleep(users)
    end.between.on_epoch_end(0, {})
    now.sleep(checkpoint)
    end.after.on_epoch_end(0, {})


def test_each_part_has_its_own_seconds(now):
    resumed = []
    clock = SimpleNamespace(resume=lambda: resumed.append(now()))
    end = EpochEnd(clock, FakeHorizon(now), now)
    assert end.ended_at is None
    ended(end, now, users=2.0, checkpoint=3.0)
    ended(end, now, users=0.25, checkpoint=1.0)
    assert (end.callback_seconds, end.checkpoint_seconds) == (2.25, 4.0)
    assert resumed == [105.0, 106.25]  # the clock runs again after the last callback
    assert end.ended_at == 106.25


def test_a_training_that_a_callback_stopped_is_measured_again(now):
    horizon = FakeHorizon(now)
    end = EpochEnd(SimpleNamespace(resume=lambda: None), horizon, now)
    ended(end, now, users=1.0)
    assert not horizon.finished
    horizon.model.stop_training = True
    ended(end, now, users=1.0)
    ended(end, now)
    assert horizon.finished
    assert horizon.validation_seconds == 0.5  # once
    assert end.callback_seconds == 2.0  # without the measurement
