"""The command `kbatch export`."""

from __future__ import annotations

from pathlib import Path

from kbatch.cli.command import with_options
from kbatch.cli.console import print_text
from kbatch.cli.export_options import Options
from kbatch.cli.failure import told_plainly
from kbatch.errors import RecordError
from kbatch.records import files
from kbatch.records.store import Record
from kbatch.runtime import signals


@with_options(Options)
def export(options: Options) -> None:
    """Write plain Keras code that trains a recipe of a search without kbatch.

    Model and data are in the code where the records know them; else they are marked with TODO.
    Needs no TensorFlow.
    """
    with told_plainly():
        options.check()
        with signals.at_once():
            from kbatch.results.export import code_of
        code = code_of(options.directory, _record(options))
        if options.out is None:
            print_text(code)
            return
        file = Path(options.out)
        if file.exists() and (not options.force or not file.is_file()):
            do = "Name another file, or pass --force" if file.is_file() else "Name a file"
            raise RecordError("--out must be a file that does not exist yet", str(file), do)
        files.write(file, code)
        print(f"Written: {file}")


def _record(options: Options) -> Record:
    from kbatch.results.ranking import baseline_training, best_training, trial_training

    if options.baseline:
        return baseline_training(options.directory)
    if options.trial is not None:
        return trial_training(options.directory, options.trial)
    return best_training(options.directory)
