"""A recipe either fits, is made to fit by equal passes, or is refused."""

import itertools

import pytest

from kbatch import Recipe, Space
from kbatch.errors import SearchError
from kbatch.memory._max_batch import Row, Table
from kbatch.memory._micro_batch import MOST_STEPS, check, facts, fitted, why_not
from kbatch.space import NAMES, Combination

TABLE = Table(
    tuple(
        Row(Combination(policy, optimizer, jit), size, size - 4, 10**9, None, 20)
        for size, (policy, optimizer, jit) in enumerate(
            itertools.product(("float32", "mixed_float16"), ("sgd", "adam"), (False, True)), 60
        )
    ),
    limit_bytes=8 * 10**9,
    augmentation="none",
    executed_probes=10,
    compilations=8,
    seconds=1.0,
)


@pytest.mark.parametrize("limit", range(1, 40))
@pytest.mark.parametrize("batch_size", [1, 7, 12, 32, 96, 100, 512])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_fitted_equals_brute_force(limit, batch_size, devices):
    batch_size *= devices
    recipe = Recipe(batch_size=batch_size)
    wanted = [
        steps
        for steps in range(1, MOST_STEPS + 1)
        if batch_size % (steps * devices) == 0 and batch_size // (steps * devices) <= limit
    ]
    got = fitted(recipe, limit, devices=devices)
    assert (got is None) == (not wanted)
    if got is not None:
        assert got.accumulation_steps == wanted[0]
        assert got.batch_size == batch_size


def test_accumulation_has_a_row_of_its_own():
    adam = Recipe(batch_size=61, optimizer="adam", policy="float32")
    row = TABLE.row(Combination("float32", "adam", False))
    assert (row.batch_size, row.accumulated_batch_size) == (62, 58)
    assert fitted(adam, TABLE) == adam
    # 62 would fit without accumulation only
    assert fitted(Recipe(batch_size=124), TABLE).micro_batch_size == 31
    assert (
        fitted(Recipe(batch_size=60, optimizer="sgd", learning_rate=0.1), TABLE).accumulation_steps
        == 1
    )


def test_an_accumulating_recipe_accumulates_more_or_stays():
    assert fitted(Recipe(batch_size=64, micro_batch_size=16), 16).micro_batch_size == 16
    assert fitted(Recipe(batch_size=64, micro_batch_size=16), 8).micro_batch_size == 8


def test_without_limits_nothing_changes():
    recipe = Recipe(batch_size=10**6)
    assert fitted(recipe, None) is recipe


def test_why_not_says_the_sizes():
    assert "512" in why_not(Recipe(batch_size=512), 4)


@pytest.mark.parametrize("limits", [0, -1, True, 1.5, "8", [1]])
def test_other_limits_are_refused(limits):
    with pytest.raises(SearchError, match="max_batch"):
        check(limits, Space())


def test_a_table_must_cover_the_space():
    assert check(TABLE, Space(jit_compile=(False, True))) is TABLE
    with pytest.raises(SearchError, match="compiled"):
        check(TABLE, Space(optimizer=("sgd", "compiled")))


def test_a_table_survives_json_and_prints():
    import json

    assert Table.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE
    assert len(TABLE) == 8
    assert list(TABLE.frame.columns)[: len(NAMES) + 1] == [*NAMES, "batch_size"]
    assert any(line.split()[:2] == ["mixed_float16", "adam"] for line in str(TABLE).splitlines())
    assert facts(TABLE)["sgd, float32, jit False"] == [60, 56]
