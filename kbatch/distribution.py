"""Distribution: the name by which kbatch is installed, and another project of its import name."""

from __future__ import annotations

import importlib.metadata
import warnings

NAME = "keras-kbatch"
OTHER = "kbatch"  # on PyPI a tool for Kubernetes, which is imported as `kbatch` too
DO = f"pip uninstall {OTHER} && pip install --force-reinstall {NAME}"


def other_version() -> str | None:
    """Return the version of the other project if it is installed here; `None` if it is not."""
    try:
        found = importlib.metadata.metadata(OTHER)
    except importlib.metadata.PackageNotFoundError:
        return None
    if "KerasTuner" in (found["Summary"] or ""):  # this project, by the name it had before
        return None
    return str(found["Version"])


def warn_of_other() -> None:
    """Warn if the other project is installed: the files of both lie in one folder."""
    version = other_version()
    if version is not None:
        warnings.warn(
            f"{OTHER} {version}, another project, is installed beside {NAME}, and both are "
            f"imported as kbatch: files of one may have replaced the other's. Run `{DO}`.",
            stacklevel=3,
        )
