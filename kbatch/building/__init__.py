"""From a recipe and the user's build function to a compiled model."""
