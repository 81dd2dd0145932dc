"""The sources of examples: folders and zips of pictures, arrays in a file, TFDS, a function."""
