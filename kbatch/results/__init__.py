"""Tables, figures and reports of searches, without TensorFlow."""

from kbatch.outcome import Goal
from kbatch.results.comparison import Comparison, compare
from kbatch.results.loading import load, load_confirmations
from kbatch.results.ranking import best_recipe as best

__all__ = ["Comparison", "Goal", "best", "compare", "load", "load_confirmations"]
