"""Numbers of the command line: plain digits, and nothing else that Python takes for a number."""

import math

import pytest

from kbatch.errors import DataError
from kbatch.plain_text import MOST, MOST_AXES, MOST_VALUES, example_shape, number, sizes_of, whole


@pytest.mark.parametrize("value", [0, 7, -12, 10**12])
def test_plain_digits_are_the_number_that_python_says(value):
    assert whole(f" {value} ") == int(str(value))
    assert number(str(value)) == float(value)


@pytest.mark.parametrize("text", ["1_0", "٣٢", "²", "0x10", "", "1.0", "1e3", "1" * 301])
def test_other_whole_numbers_of_python_are_none(text):
    assert whole(text) is None


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "1_0.5", ".", "", "1e", "٣.٢"])
def test_texts_without_a_finite_number_are_none(text):
    assert number(text) is None


@pytest.mark.parametrize("text", ["0.1", ".5", "5.", "1e-3", "-2.5E+2"])
def test_decimal_texts_are_what_python_says(text):
    assert number(text) == float(text)


@pytest.mark.parametrize("text", ["0", "-1", "32,", "32;64", str(MOST + 1)])
def test_sizes_outside_of_tensorflows_range_are_refused(text):
    assert sizes_of("--sizes", f"1, {MOST}", "") == (1, MOST)
    with pytest.raises(DataError, match="--sizes must be whole numbers"):
        sizes_of("--sizes", text, "Separate them by commas")


def test_an_example_has_few_axes_and_fits_into_memory():
    side = math.isqrt(MOST_VALUES)
    assert example_shape(f"{side},{side}") == (side, side)
    assert example_shape(",".join(["1"] * MOST_AXES)) == (1,) * MOST_AXES
    for text in (f"{side},{side},2", ",".join(["1"] * (MOST_AXES + 1))):
        with pytest.raises(DataError, match="--shape must be of at most"):
            example_shape(text)
