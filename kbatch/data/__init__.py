"""Data: one endless stream for training, and fixed batches for validation."""

# Keras' own default, so that `model.evaluate(x, y)` gives the same number
VALIDATION_BATCH_SIZE = 32
