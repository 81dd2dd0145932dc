"""The command `kbatch cats-vs-dogs`."""

from __future__ import annotations

import dataclasses

from kbatch.case_study.options import DEFAULT_SECONDS, Options
from kbatch.cli.command import with_options
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly


@with_options(Options)
def cats_vs_dogs(options: Options) -> None:
    """Search how to train the cats-vs-dogs model, and confirm the best recipes with fresh seeds.

    Every trial trains for the same seconds. Its score is the validation accuracy that it holds
    above chance, per second. Stop it with Ctrl-C whenever you like: the same command goes on where
    it was.
    """
    if options.seconds_per_trial is None and options.epochs is None:
        options = dataclasses.replace(options, seconds_per_trial=DEFAULT_SECONDS)
    with told_plainly(options.out):
        from kbatch.case_study.task import CatsVsDogs
        from kbatch.driver import driver

        driver.run(options, CatsVsDogs(options), new_console())
