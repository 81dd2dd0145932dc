"""Tables, figures and reports of searches, without TensorFlow."""

from kbatch.goal import Goal
from kbatch.results.loading import load, load_confirmations

__all__ = ["Goal", "load", "load_confirmations"]
