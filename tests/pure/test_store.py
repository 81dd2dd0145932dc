import json
import warnings

import pytest

from kbatch import Outcome, Recipe
from kbatch.errors import ProjectChangedError, RecordError
from kbatch.records import project
from kbatch.records.store import Record, Store, key_of, read


def record(trial=0, score=0.1, **fields):
    outcome = Outcome(
        ended="horizon",
        curve=((1.0, 0.6), (2.0, 0.7), (3.0, 0.8)),
        value=0.6,
        seconds={"total": 3.5},
        remarks=("a",),
    )
    recipe = fields.pop("recipe", Recipe())
    fields = {"purpose": "search", "seed": 0, "values": {"units": 8}, **fields}
    return Record(
        key=key_of(fields["values"], recipe, fields["seed"], f"{trial}"),
        trial=trial,
        recipe=recipe,
        outcome=outcome,
        score=score,
        **fields,
    )


def test_a_record_survives_its_file(tmp_path):
    store = Store(tmp_path)
    store.start(record().key)
    store.end(record())
    assert Store(tmp_path).records() == [record()]
    assert Store(tmp_path).finished(record().key) == record()


def test_the_key_depends_on_values_recipe_seed_and_purpose():
    base = ({"units": 8}, Recipe(), 0, "search")
    others = [
        ({"units": 16}, *base[1:]),
        (base[0], Recipe(64), 0, "search"),
        (base[0], Recipe(), 1, "search"),
        (*base[:3], "baseline"),
    ]
    assert len({key_of(*arguments) for arguments in [base, *others]}) == 5


def test_an_incomplete_last_line_is_named_and_spoils_nothing(tmp_path):
    store = Store(tmp_path)
    store.end(record(0))
    store.end(record(1))
    text = store.path.read_bytes()
    for cut in (2, 40, len(text) // 4):
        store.path.write_bytes(text[:-cut])
        with pytest.warns(UserWarning, match="last line is incomplete"):
            assert len([line for line in read(store.path) if line.record]) == 1
        with pytest.warns(UserWarning, match="last line is incomplete"):
            again = Store(tmp_path)
        again.end(record(2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [r.trial for r in Store(tmp_path).records()] == [0, 2]


def test_a_last_line_that_lost_only_its_end_is_kept(tmp_path):
    store = Store(tmp_path)
    store.end(record(0))
    store.path.write_bytes(store.path.read_bytes()[:-1])
    Store(tmp_path).end(record(1))
    assert [r.trial for r in Store(tmp_path).records()] == [0, 1]


def test_a_line_with_half_of_a_character_is_refused(tmp_path):
    """A lone surrogate is JSON and text of Python's, but no table, file or terminal can hold it."""
    store = Store(tmp_path)
    store.end(record(0))
    store.end(record(1))
    first, rest = store.path.read_text().split("\n", 1)
    store.path.write_text(
        first.replace('"values": {', '"values": {"name": "\\ud800", ', 1) + "\n" + rest
    )
    assert "ud800" in store.path.read_text()
    with pytest.raises(RecordError, match="must be a record"):
        Store(tmp_path).records()


def test_a_broken_line_in_the_middle_is_refused(tmp_path):
    store = Store(tmp_path)
    store.end(record(0))
    store.path.write_bytes(b"garbage\n" + store.path.read_bytes())
    with pytest.raises(RecordError, match="line 1"):
        Store(tmp_path)


def test_unended_starts_are_counted_interruptions_are_not(tmp_path):
    store = Store(tmp_path)
    store.start("a")
    store.interrupt("a")
    store.start("a")
    assert Store(tmp_path).unfinished_starts("a") == 1
    store.start("a")
    assert store.unfinished_starts("a") == 2
    assert store.unfinished_starts("b") == 0


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="writable"):
        Store(tmp_path / "file" / "below")


def test_a_changed_fact_is_named_with_both_values(tmp_path):
    project.save_facts(tmp_path, {"space": {"batch_size": [16, 32], "jit": [False]}, "seed": 0})
    project.check_facts(tmp_path, {"space": {"batch_size": (16, 32), "jit": (False,)}, "new": 1})
    with pytest.raises(
        ProjectChangedError, match=r"space.batch_size was \[16, 32\] and is now \[16\]"
    ):
        project.check_facts(tmp_path, {"space": {"batch_size": [16], "jit": [False]}})


def test_a_checksum_once_unknown_is_never_compared_again(tmp_path):
    def facts(checksum, **others):
        return {"data": {"training": {"checksum": checksum, "examples": 3}}, **others}

    project.save_facts(tmp_path, facts(1, target=None))
    with pytest.raises(ProjectChangedError, match="values or order of data.training are not those"):
        project.check_facts(tmp_path, facts(2))
    for checksum in (1, None, 2, None, 3):
        project.check_facts(tmp_path, facts(checksum))
    with pytest.raises(ProjectChangedError, match="target was None and is now 0.9"):
        project.check_facts(tmp_path, facts(1, target=0.9))


def test_facts_appear_whole_or_not_at_all(tmp_path):
    project.save_facts(tmp_path, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["project.json"]
    (tmp_path / "project.json").write_text('{"a": ')
    with pytest.raises(RecordError, match="readable JSON"):
        project.load_facts(tmp_path)


def test_outcomes_survive_json_with_nan_in_the_curve():
    outcome = Outcome(ended="nan", curve=((1.0, float("nan")),))
    again = Outcome.from_dict(json.loads(json.dumps(outcome.to_dict())))
    assert again.ended == "nan"
    assert again.curve[0][0] == 1.0
