"""Building a compiled model from a recipe and the user's build function."""
