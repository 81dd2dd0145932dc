"""The file of the page, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbatch.page.contents import contents_of
from kbatch.page.html import html_of, vega
from kbatch.records import files
from kbatch.records.files import is_locked
from kbatch.results.loading import folder_of, root_of

FILE = "report.html"
RUNNING = (
    "The search was still running when this page was written. `kbatch report` writes it again."
)
LIVE = "The search is running: this page is written after each training, and loads itself again."
RELOAD_SECONDS = 10


def write(source: Any) -> Path:
    """Write the page of a search into its folder, as `report.html`.

    Args:
        source: The tuner, the folder of a search, or what `--out` was.

    Returns:
        The file.

    Raises:
        RecordError: If there are no records, they cannot be read, or the file cannot be written.
    """
    return _written(source, RUNNING if is_locked(folder_of(source)) else "", 0)


def write_live(source: Any) -> Path:
    """Write the page of a search that goes on in this process; the page reloads itself."""
    return _written(source, LIVE, RELOAD_SECONDS)


def _written(source: Any, state: str, reload_seconds: int) -> Path:
    file = root_of(source) / FILE
    files.write(file, html_of(contents_of(source), vega(), state, reload_seconds))
    return file
