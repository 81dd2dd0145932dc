"""The page of a search that runs: written again after each training."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kbatch.page import files
from kbatch.recipe import Recipe
from kbatch.records.store import Record
from kbatch.training.progress import Forecast, Watcher


class LivePage(Watcher):
    """Tells another watcher of every training, and writes the page of the search after each one.

    The page is written between two trainings, so no clock counts it. If it cannot be written, a
    warning says so once, and the search goes on.

    Args:
        directory: Folder of the search, where `report.html` is written.
        watcher: `Watcher` that is told too.

    Example:
    ```python
    from kbatch.page.live_page import LivePage
    from kbatch.training.progress import ProgressBar

    hypermodel.watcher = LivePage("runs/pets", ProgressBar())
    ```
    """

    def __init__(self, directory: Any, watcher: Watcher) -> None:
        self._directory = directory
        self._watcher = watcher
        self._warned = False

    def begins(self, forecast: Forecast, parts: str) -> None:
        """Tell that a search or a confirmation begins."""
        self._watcher.begins(forecast, parts)

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Tell that a training begins."""
        self._watcher.started(purpose, trial, recipe, seconds)

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Tell that time has passed."""
        self._watcher.progress(train_seconds, value)

    def answered(self, record: Record) -> None:
        """Tell that a record answered a training."""
        self._watcher.answered(record)

    def ended(self, record: Record) -> None:
        """Tell that a training ended, and write the page."""
        self._watcher.ended(record)
        try:
            files.write_live(self._directory)
        except Exception as error:  # whatever it is, the record of the training is safe
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        words = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(
            f"The page {files.FILE} could not be written, and the search goes on: {words}",
            stacklevel=3,
        )


@contextmanager
def at_rest(directory: str | Path) -> Iterator[None]:
    """Write the page again where a search stopped early, so that it does not wait for more.

    Args:
        directory: Folder of the search.
    """
    try:
        yield
    except BaseException:
        if (Path(directory) / files.FILE).exists():
            with contextlib.suppress(Exception):
                files.write(directory)
        raise
