"""What kbatch assumes of a model and data, checked and told as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbatch import text_table
from kbatch.cli.search_answer import task_of
from kbatch.cli.search_options import SearchOptions
from kbatch.driver import driver

if TYPE_CHECKING:
    from rich.console import Console

    from kbatch.checks.check import Found


def answer(options: SearchOptions, console: Console) -> bool:
    """Check what kbatch assumes, print a table, and return whether no check refuses."""
    found = _found(options, console)
    console.print(table(found, console.width), highlight=False, markup=False, soft_wrap=True)
    refused = [each.check.name for each in found if each.refusal is not None]
    seconds = sum(each.seconds for each in found)
    says = f"A search would refuse: {', '.join(refused)}." if refused else "A search would begin."
    console.print(f"{says} {len(found)} checks took {seconds:.1f} s.", highlight=False)
    return not refused


def table(found: Sequence[Found], width: int) -> str:
    """Return what checks found as a text, one row per check."""
    from rich.table import Table
    from rich.text import Text

    page = Table(show_lines=True)
    for heading in ("check", "kbatch assumes", "here", "else", "found"):
        page.add_column(heading, ratio=WIDE.get(heading))
    page.add_column("s", justify="right")
    for each in found:
        cells = (each.check.name, each.check.assumes, each.verdict, each.check.otherwise)
        row = (*cells, each.sentence, f"{each.seconds:.1f}")
        page.add_row(*map(Text, row))
    return text_table.rendered(page, width)


WIDE = {"kbatch assumes": 2, "else": 2, "found": 3}  # shares of the width that others leave


def _found(options: SearchOptions, console: Console) -> list[Found]:
    """Make the checks of the search that the options ask for."""
    options, task = task_of(options)
    space = options.space()
    task.check()
    driver.import_tensorflow()
    driver.start_tensorflow()
    from kbatch.checks import catalogue
    from kbatch.data.streams import inputs_of
    from kbatch.hypermodel import HyperModel
    from kbatch.models.maker import check_known_values
    from kbatch.training.arguments import FitArguments

    searched = task.searched(driver.load(task, console))
    console.print(searched.words, highlight=False, soft_wrap=True)
    terms = HyperModel(searched.spec, space, metric=searched.metric, seconds_per_trial=1).terms
    maker, policy = terms.model_maker, space.baseline.policy
    hp = maker.hyperparameters()
    model = maker.raw(policy, hp)
    check_known_values(maker.values, hp, lambda other: maker.raw(policy, other))
    arguments = FitArguments.parse(
        searched.examples.train, {"validation_data": searched.examples.validation}
    )
    data = arguments.data(lambda: inputs_of(model))
    return catalogue.made(terms.subject(arguments, data))
