import numpy as np
import pytest

from kbatch.data.examples import Shares, shares_of, stratified
from kbatch.errors import DataError

THIRDS = Shares(60, 20, 20)


@pytest.mark.parametrize("shares", [THIRDS, Shares(80, 20, 0), Shares(1, 98, 1), Shares(1, 1, 98)])
def test_every_part_with_a_share_gets_examples(shares):
    for count in range(shares.least, 200):
        sizes = shares.sizes(count)
        assert sum(sizes) == count
        assert min(sizes[:2]) >= 1
        assert (sizes[2] >= 1) == (shares.test > 0)


def test_shares_hold_within_one_example():
    for count in range(10, 500):
        train, validation, test = THIRDS.sizes(count)
        assert abs(validation - 0.2 * count) <= 0.5
        assert validation == test
        assert abs(train - 0.6 * count) <= 1


def test_a_split_holds_each_example_once_and_each_class_by_share():
    classes = np.repeat([0, 1, 2, 7], [100, 50, 10, 3])
    parts = stratified(classes, THIRDS, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(classes)))
    assert [np.unique(classes[part], return_counts=True)[1].tolist() for part in parts] == [
        [60, 30, 6, 1],
        [20, 10, 2, 1],
        [20, 10, 2, 1],
    ]


def test_the_seed_alone_decides_a_split():
    classes = np.arange(60) % 3
    one, same, other = (stratified(classes, THIRDS, seed)[0].tolist() for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_data_with_a_test_set_keep_the_ratio_of_the_others():
    assert THIRDS.beside(("train", "test")) == Shares(75, 25, 0)


@pytest.mark.parametrize(
    "text", ["80", "80,30", "100,0", "-20,120", "a,b", "", "60,20,20,0", "٨٠,٢٠"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(DataError, match="add up to 100"):
        shares_of(text)
