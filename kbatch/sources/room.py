"""Room: the memory of the machine, which data must fit into before they are read."""

from __future__ import annotations

from kbatch.errors import DataError

COPIES = 2  # the whole and its parts; later the parts and TensorFlow's tensors


def check(needed_bytes: int, words: str, remedy: str) -> None:
    """Refuse data that do not fit into the memory that is free, before they are read.

    Args:
        needed_bytes: Integer, bytes of the data.
        words: String, what the data are.
        remedy: String, what to do about it.

    Raises:
        DataError: If twice the bytes are not free.
    """
    import psutil

    free = psutil.virtual_memory().available
    if COPIES * needed_bytes > free:
        raise DataError(
            f"Data must fit into memory {COPIES} times: {words} take "
            f"{needed_bytes:,} bytes each time",
            f"{free:,} bytes that are free",
            remedy,
        )
