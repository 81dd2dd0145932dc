"""Rules for the training settings that change with the batch size."""
