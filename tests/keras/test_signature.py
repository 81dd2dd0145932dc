"""A loss is known again in a new process, and told from one that differs."""

import runpy

from kbatch.models.maker import described

SOURCE = """
def make(gamma, weight=2):
    def loss(y_true, y_pred):
        def inner(x):
            return [each * weight for each in x]

        return inner(y_pred)[0] ** {power} * gamma

    return loss
"""


def loss_of(tmp_path, power=2, lines=0, **arguments):
    """A loss of a module that is imported anew, with empty lines before it."""
    file = tmp_path / f"losses_{power}_{lines}.py"
    file.write_text("\n" * lines + SOURCE.format(power=power))
    return runpy.run_path(str(file))["make"](**{"gamma": 0.5, **arguments})


def test_a_function_with_one_inside_is_known_again(tmp_path):
    first = described(loss_of(tmp_path))
    assert described(loss_of(tmp_path)) == first
    assert described(loss_of(tmp_path, lines=5)) == first


def test_code_and_closed_over_values_tell_functions_apart(tmp_path):
    first = described(loss_of(tmp_path))
    for change in ({"power": 3}, {"gamma": 0.25}):
        assert described(loss_of(tmp_path, **change)) != first
