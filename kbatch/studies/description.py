"""Description: what a study ran and of which pictures, in sentences for its page."""

from __future__ import annotations

import pandas as pd

from kbatch.studies.measured import Measured


def sentences(measured: Measured) -> list[str]:
    """Return what ran here: pictures, network, trainings, memory limit, and whether it is quick.

    All numbers are those of the setting and the cells, not those that were published.

    Args:
        measured: What was measured.
    """
    frame, setting, sample = measured.frame, measured.setting, measured.sample
    lengths = dict.fromkeys(zip(frame.length, frame.unit, strict=True))
    trained = " or ".join(counted(length, unit) for length, unit in lengths)
    said = [
        f"pictures: {sample}, {setting.image_size} px, from {sample.source}",
        f"network: {', '.join(frame.model.unique())}",
        f"each training: {trained}; {counted(frame.seed.nunique(), 'seeds')} of every cell",
    ]
    if frame.environment.any():
        said.append(f"memory limit: {megabytes(setting.memory_limit)}")
    if setting.quick:
        said.append("a quick study: few and small pictures, few sizes, and no claims")
    return said


def epochs_of(epochs: pd.DataFrame) -> str:
    """Return the number of epochs of some rows in words."""
    return " or ".join(counted(number, "epochs") for number in epochs.length.unique())


def megabytes(limit: int | None) -> str:
    """Return a memory limit in words.

    >>> megabytes(2 * 10**9), megabytes(None)
    ('2,000 MB', 'all that the device has')
    """
    return "all that the device has" if limit is None else f"{limit / 1e6:,.0f} MB"


def counted(number: float, things: str) -> str:
    """Return a number of things, of which there may be one.

    >>> counted(5, "epochs"), counted(1, "epochs"), counted(0.314, "seconds")
    ('5 epochs', '1 epoch', '0.314 seconds')
    """
    return f"{number:,g} {things.removesuffix('s') if number == 1 else things}"
