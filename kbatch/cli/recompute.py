"""The command `kbatch recompute`."""

from __future__ import annotations

from kbatch.cli.command import with_options
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.cli.recompute_options import Options
from kbatch.runtime import signals


@with_options(Options)
def recompute(options: Options) -> None:
    """Show how much memory gradient checkpointing saves in a model, and how much time it costs.

    It also shows where to cut the model. Each operation is traced forward and backward once;
    nothing is trained. Without a limit the plan of the lowest peak is shown in words.
    """
    with told_plainly():
        from kbatch.runtime import streams

        with signals.at_once(), streams.turned_away():
            from kbatch.cli.recompute_answer import answer
        answer(options, new_console())
