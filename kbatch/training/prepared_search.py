"""A search that is opened ahead of `tuner.search`, so that its goal is known before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kbatch.records.project import Project
from kbatch.runtime import device_memory
from kbatch.training.fit_arguments import FitArguments
from kbatch.training.progress import Watcher
from kbatch.training.search import Search
from kbatch.training.search_terms import Terms


class PreparedSearch:
    """Keeps a search that was opened ahead, for calls with the very same objects.

    `tuner.search` and `kbatch.confirm` take it instead of preparing the data again. The data must
    not change in between: they are not checked again.

    Args:
        terms: `Terms` of the search.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._search: Search | None = None
        self._device = ""

    def open(self, project: Project, *args: Any, **kwargs: Any) -> Search:
        """Open and keep a search.

        Args:
            project: Project of the tuner to come.
            *args: `x` and `y`, as for `tuner.search`.
            **kwargs: The other arguments of `tuner.search`.
        """
        self._search, self._device = (
            self._terms.open(project, args, kwargs),
            device_memory.device_words(),
        )
        return self._search

    def matching(
        self,
        project: Project,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        watcher: Watcher | None,
    ) -> Search | None:
        """Return the search that was opened for these arguments, or `None`.

        Args:
            project: Project of the tuner.
            args: `x` and `y`.
            kwargs: The other arguments of `tuner.search`.
            watcher: `Watcher` that is told of every training from now on. Optional.
        """
        search = self._search
        if search is None or search.project.directory != project.directory:
            return None
        if self._device != device_memory.device_words():  # the tuner has a strategy
            return None
        if not search.arguments.same_objects(FitArguments.parse(args, kwargs)):
            return None
        # Another process may have trained in the project meanwhile.
        search.project.store.read_again()
        return dataclasses.replace(search, watcher=watcher or search.watcher)
