"""The folder of a command's results, made before anything slow begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kbatch.driver.options import PROJECT
from kbatch.errors import SearchError
from kbatch.records import files

ENDINGS = (".html", ".md", ".csv", ".png", ".json", ".jsonl")  # of what commands write there
LONGEST_NAME = 200  # characters of a file's path below --out, for the system's limit on a path


def ready(out: str) -> Path:
    """Make the folder of the results, and return it.

    Args:
        out: Text of `--out`.

    Raises:
        SearchError: If it cannot be made or written.
        RecordError: If a file in it that may be written is a link.
    """
    folder = Path(out)
    try:
        out.encode("utf-8")  # TensorFlow takes no other names
        (folder / PROJECT / ("x" * LONGEST_NAME)).exists()  # raises if the path is too long
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except ValueError as error:
        raise SearchError(
            "--out must be the name of a folder, in UTF-8", repr(out), "Pass another folder"
        ) from error
    except OSError as error:
        received = f"{folder}: {error.strerror or error}"
        raise files.disk_trouble(error) or SearchError(
            "--out must be a folder that can be written", received, "Pass another folder"
        ) from error
    files.check_no_linked_files(folder, ENDINGS)
    files.check_no_link(folder / PROJECT)
    files.check_no_links(folder / PROJECT)
    return folder
