"""Tables, figures and reports of searches, without TensorFlow."""

from kbatch.results.loading import load, load_confirmations

__all__ = ["load", "load_confirmations"]
