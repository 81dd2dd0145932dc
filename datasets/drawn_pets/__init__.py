"""TFDS data set `drawn_pets`."""
