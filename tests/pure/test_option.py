"""Options of the command line: what their texts mean, and texts that mean nothing."""

import pytest

from kbatch.axes import AXIS
from kbatch.axis import Option, Range, between, names, numbers, one_of, whole_numbers, words
from kbatch.errors import DataError, SearchError
from kbatch.recipe_words import AUGMENTATIONS


@pytest.mark.parametrize(
    ("read", "text", "values"),
    [
        (names(("sgd", "adam")), "adam, sgd,", ("adam", "sgd")),
        (words, "none, my_own", ("none", "my_own")),
        (whole_numbers, "32,64", (32, 64)),
        (numbers, "0,0.1,1e-3", (0.0, 0.1, 0.001)),
        (one_of({"both": (False, True)}), "both", (False, True)),
        (between(1e-6, 1.0), "0.001:0.1", Range(0.001, 0.1)),
    ],
)
def test_a_text_is_read(read, text, values):
    assert read("--option", text) == values


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (names(("sgd", "adam")), "sgd,lion", "--option must be names out of sgd, adam"),
        (names(("sgd", "adam")), " , ", "--option must be names out of sgd, adam"),
        (whole_numbers, "32,1_0", "--option must be whole numbers of at least 1"),
        (numbers, "0,nan", "--option must be numbers"),
        (one_of({"both": (False, True)}), "Both", "--option must be one of both"),
        (between(1e-6, 1.0), "0.1:0.001", "two rates from 1e-06 to 1, the lower first"),
        (between(1e-6, 1.0), "0.1:0.1", "the lower first"),
        (between(1e-6, 1.0), "0.1:2", "from 1e-06 to 1"),
        (between(1e-6, 1.0), "0.1", "the lower first"),
    ],
)
def test_a_text_without_meaning_is_refused(read, text, says):
    with pytest.raises((SearchError, DataError), match=says) as error:
        read("--option", text)
    assert repr(text)[1:-1] in str(error.value)


def test_an_option_has_a_name_for_python():
    assert Option("batch-sizes", "", whole_numbers).parameter == "batch_sizes"


def test_every_built_in_augmentation_can_be_searched_by_command():
    option = AXIS["augmentation"].option
    assert option.read("--augmentations", ",".join(AUGMENTATIONS)) == AUGMENTATIONS
    assert {"mixup", "cutmix"} < set(AUGMENTATIONS)
