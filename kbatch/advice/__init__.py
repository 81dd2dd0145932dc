"""Advice on recipes, and recipes to start with; no TensorFlow without a model or data."""
