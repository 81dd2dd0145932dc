"""Results: records as tables, figures and a report, without TensorFlow."""

from kbatch.results.loading import load, load_confirmations

__all__ = ["load", "load_confirmations"]
