"""The data of a search: an endless stream for training, and fixed batches for validation."""

# the default of Keras, so that `model.evaluate(x, y)` returns the same numbers
VALIDATION_BATCH_SIZE = 32
