"""Plain Keras code that trains a recipe without kbatch."""
