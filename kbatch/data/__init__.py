"""Data: one endless stream for training, fixed batches for validation, and the pictures of the case study."""
