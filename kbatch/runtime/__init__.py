"""TensorFlow as a process: workers, out-of-memory errors, Ctrl-C, and what an import prints."""
