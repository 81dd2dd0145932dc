"""Models: the user's model, made, compiled and trained as a recipe says."""
