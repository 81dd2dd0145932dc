"""Functions and classes of plain Keras, whose text is copied into the code of a recipe.

These modules are read, not imported. They import nothing of kbatch but what can be copied too.
"""
