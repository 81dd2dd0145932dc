"""The command `kbatch max-batch`."""

from __future__ import annotations

from kbatch.cli.command import with_options
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.cli.max_batch_options import Options
from kbatch.runtime import signals


@with_options(Options)
def max_batch(options: Options) -> None:
    """Find the largest batch that safely trains, by a few probes in a process that may die.

    Answers are kept in ~/.cache/kbatch (or $KBATCH_CACHE) under the traced model, and given again
    without a probe; --fresh measures again.
    """
    with told_plainly(
        stopped=" Sizes that were tried are not kept: the same command tries them again."
    ):
        with signals.at_once():
            from kbatch.cli.max_batch_answer import answer

        answer(options, new_console())
