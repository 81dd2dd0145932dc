"""The command `kbatch advise`."""

from __future__ import annotations

from kbatch.cli.advise_options import Options
from kbatch.cli.command import with_options
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.runtime import signals


@with_options(Options)
def advise(options: Options) -> None:
    """Say what a seasoned colleague would about a recipe, with reason and source.

    Of a folder the best recipe and the baseline are looked at; with --recipe, that recipe, by the
    results of the folder if there is one. TensorFlow is not needed without --build.
    """
    with told_plainly():
        with signals.at_once():
            from kbatch.cli.advise_answer import answer
        console = new_console()
        for line in answer(options):
            console.print(line, highlight=False, soft_wrap=True)
