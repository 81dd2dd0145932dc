import json
from dataclasses import asdict, dataclass

import pytest

from kbatch import Outcome, Recipe, plain_text
from kbatch.errors import RecipeError, RecordError
from kbatch.memory import MaxBatch
from kbatch.plain_text import Count, FiniteAbove0


@dataclass(frozen=True)
class Part:
    name: str
    bytes: Count = 0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    seconds: FiniteAbove0 = 1.0


def read(fields):
    return plain_text.read_json(Whole, fields, RecipeClause)


class RecipeClause(RecipeError):
    """An error that takes the clause of what was received only."""

    def __init__(self, received):
        super().__init__("It must fit", received, "Write it again")


def test_a_value_survives_its_json():
    value = Whole((Part("a", 3), Part("b")), 0.5)
    assert read(json.loads(json.dumps(asdict(value)))) == value
    assert read(asdict(value)) == value


@pytest.mark.parametrize(
    ("fields", "received"),
    [
        ([], "Expected `object`"),
        ({}, "missing required field `parts`"),
        ({"parts": "ab"}, "Expected `array`"),
        ({"parts": [{"name": 3}]}, r"at `\$\.parts\[0\]\.name`"),
        ({"parts": [{"name": "a", "bytes": True}]}, "got `bool`"),
        ({"parts": [{"name": "a", "bytes": 1.0}]}, "got `float`"),
        ({"parts": [{"name": "a", "bytes": -1}]}, ">= 0"),
        ({"parts": [{"name": "a", "bytes": 1 << 63}]}, r"\$\.parts\[0\]\.bytes"),
        ({"parts": [], "seconds": float("nan")}, "seconds"),
        ({"parts": [], "seconds": float("inf")}, "seconds"),
        ({"parts": [], "seconds": 10**400}, "seconds|out of range"),
        ({"parts": [], "colour": 1}, "unknown names 'colour'"),
        ({"parts": [{"name": "a", "colour": 1}]}, "unknown names 'colour'"),
    ],
)
def test_other_fields_are_refused_with_the_error_of_the_caller(fields, received):
    with pytest.raises(RecipeClause, match=f"must fit.*{received}"):
        read(fields)
    assert not plain_text.fits_json(fields, Whole)


@pytest.mark.parametrize("text", ["", "{", b"\xff", '"\\ud800"', "[" * 100_000])
def test_a_text_that_no_file_can_hold_is_refused(text):
    with pytest.raises(RecipeClause, match="must fit"):
        plain_text.parse_json(text, RecipeClause)
    with pytest.raises(RecipeError):
        Recipe.from_json(text)
    with pytest.raises(RecordError):
        MaxBatch.from_json(text)


def test_whole_numbers_become_floats_where_a_float_is_meant():
    outcome = Outcome.from_dict({"ended": "horizon", "curve": [[1, 0]], "train_seconds": 2})
    assert outcome == Outcome("horizon", ((1.0, 0.0),), train_seconds=2.0)
    assert isinstance(outcome.train_seconds, float)


def test_a_recipe_in_a_record_is_checked_as_any_recipe():
    with pytest.raises(RecordError, match="must divide `batch_size`"):
        MaxBatch.from_dict(
            {
                **{"batch_size": 1, "peak_bytes": 1, "limit_bytes": 2, "first_failing": None},
                **{"probes": [], "confirmations": [], "confirmed_steps": 0, "predicted": None},
                **{"ceiling": None, "seconds": 1.0},
                "recipe": {"batch_size": 32, "micro_batch_size": 5},
            }
        )
