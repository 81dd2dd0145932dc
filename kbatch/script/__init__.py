"""Script: the code of a recipe in plain Keras."""
