import numpy as np

from kbatch.data.drawn import drawn_pets


def test_the_seed_decides_which_pets_are_drawn():
    first, again, other = (
        drawn_pets(3, 32, seed=1),
        drawn_pets(3, 32, seed=1),
        drawn_pets(3, 32, seed=2),
    )
    for name in ("cat", "dog"):
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_more_pets_begin_with_the_same_ones():
    assert np.array_equal(drawn_pets(2, 32)["dog"], drawn_pets(4, 32)["dog"][:2])


def test_no_two_pets_are_alike():
    cats = drawn_pets(40, 32)["cat"]
    assert len({cat.tobytes() for cat in cats}) == 40


def test_mean_colours_do_not_betray_the_class():
    pets = drawn_pets(300, 24)
    means = {name: images.reshape(300, -1, 3).mean(axis=1) for name, images in pets.items()}
    apart = np.abs(means["cat"].mean(axis=0) - means["dog"].mean(axis=0))
    spread = np.concatenate(list(means.values())).std(axis=0)
    assert np.all(apart < 0.35 * spread)
