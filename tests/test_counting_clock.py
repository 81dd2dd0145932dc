"""The clock of a training of so many examples: each example is a second."""

from types import SimpleNamespace

from kbatch.callbacks.clock import CountingClock


def test_examples_are_the_seconds_of_a_horizon():
    clock = SimpleNamespace(updates=0, seconds=0.0, examples=7)
    counting = CountingClock(clock, lambda: 8 * clock.updates)
    assert (counting.seconds, counting.median_update_seconds) == (0.0, None)
    curve = []
    for updates, seconds in ((3, 0.5), (6, 0.75)):
        clock.updates, clock.seconds = updates, seconds
        curve.append((counting.seconds, updates / 10))
    assert curve == [(24.0, 0.3), (48.0, 0.6)]
    assert counting.median_update_seconds == 1.0
    assert counting.in_seconds(curve) == ((0.5, 0.3), (0.75, 0.6))
    assert counting.examples == 7  # all else is the clock's
