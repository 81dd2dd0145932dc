"""TFDS data set `cats_vs_dogs_2000`."""
