"""Out of memory: the errors and deaths of a training that mean it, and the outcome they become."""

from __future__ import annotations

from kbatch.outcome import OUT_OF_MEMORY, Outcome
from kbatch.runtime.oom import is_out_of_memory, is_suspect
from kbatch.runtime.worker import Death

MESSAGE_LENGTH = 2000  # characters of an error that a record keeps


def outcome_of(error: object) -> Outcome:
    """Return the outcome of a training that an error ended, with the message of the error."""
    return Outcome(OUT_OF_MEMORY, message=str(error)[:MESSAGE_LENGTH])


def is_meant(error: Exception, micro_batch: int, largest_passed: int) -> bool:
    """Tell whether an error means that memory ran out.

    Broken installations raise some of these errors too. Such an error counts only if a smaller
    micro-batch has trained.
    """
    if is_out_of_memory(error):
        return True
    return is_suspect(error) and 0 < largest_passed < micro_batch


def outcome_of_death(death: Death) -> Outcome | None:
    """Return the outcome of a process that said so before it died; `None` of any other death."""
    if death.exit_code is None or not is_out_of_memory(RuntimeError(death.said)):
        return None
    return outcome_of(f"{death}: {death.said}")
