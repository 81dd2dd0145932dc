"""TFDS builders over the data that live in kbatch; run `tfds build` in one of the folders."""
