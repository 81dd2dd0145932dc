"""The command `kbatch search`."""

from __future__ import annotations

import dataclasses

from kbatch.cli.command import with_options
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.cli.search_options import DEFAULT_EPOCHS, Options


@with_options(Options)
def search(options: Options) -> None:
    """Search how to train your model on your data, and confirm the best with fresh seeds.

    Every trial trains for the same seconds. Its score is the validation accuracy (or the metric you
    name) that it holds above chance, per second. Stop it with Ctrl-C whenever you like: the same
    command goes on where it was.
    """
    if options.seconds_per_trial is None and options.epochs is None:
        options = dataclasses.replace(options, epochs=DEFAULT_EPOCHS)
    with told_plainly(options.out):
        from kbatch.cli.search_answer import answer

        answer(options, new_console())
