"""Data: one endless stream for training, fixed batches for validation, and the pictures of the case study."""

VALIDATION_BATCH_SIZE = 32  # Keras' own default, so that `model.evaluate(x, y)` gives the same number
