"""What kbatch must know of Ray that Ray says in the messages of its errors only.

`tests/test_ray_node.py` fails when a release says it otherwise.
"""

from __future__ import annotations


def lost_a_machine(error: Exception) -> bool:
    """Tell whether an actor ended because its machine was lost, or could not be reached.

    "The actor died because its node has died", the message of an `ActorDiedError`, or an
    `ActorUnavailableError`, ray/exceptions.py, Ray 2.60.0.
    """
    return type(error).__name__ == "ActorUnavailableError" or "its node has died" in str(error)
