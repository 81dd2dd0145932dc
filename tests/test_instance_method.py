"""A method that stands in for another on one object, and what is put back."""

import pytest

from kbatch.runtime.keras_private import replaced_method


class Bell:
    def ring(self):
        return "ding"


def test_one_object_changes_and_is_put_back_after_an_error():
    bell, other = Bell(), Bell()
    with pytest.raises(RuntimeError), replaced_method(bell, "ring", lambda: "dong"):
        assert (bell.ring(), other.ring()) == ("dong", "ding")
        raise RuntimeError
    assert not vars(bell)
    assert bell.ring() == "ding"


def test_blocks_around_one_another_restore_in_their_order():
    bell = Bell()
    with replaced_method(bell, "ring", lambda: "outer"):
        with replaced_method(bell, "ring", lambda: "inner"):
            assert bell.ring() == "inner"
        assert bell.ring() == "outer"
    assert bell.ring() == "ding"
