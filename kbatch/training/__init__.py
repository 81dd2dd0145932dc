"""Training: a recipe, a model and data in; an outcome out."""
