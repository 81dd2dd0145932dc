"""The budget of a search or of a confirmation: a time in words or in seconds."""

from __future__ import annotations

import re

from kbatch import plain_text
from kbatch.errors import SearchError

SECONDS = {"s": 1, "min": 60, "h": 3600}


def seconds_of(budget: str | float) -> float:
    """Return the seconds of a budget."""
    text = str(budget).strip()
    parts = re.fullmatch(r"(.*?)\s*(s|min|h)?", text)
    amount = plain_text.number(parts[1]) if parts and not isinstance(budget, bool) else None
    if parts is None or amount is None or amount <= 0:
        raise SearchError(
            "`budget` must be a time above 0, in s, min or h",
            repr(budget),
            'Pass "90s", "30min", "2h" or a number of seconds',
        )
    return amount * SECONDS[parts[2] or "s"]
