"""Checks: what kbatch assumes of a model, a loss and data, measured before anything trains."""
