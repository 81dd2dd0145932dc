"""The process: workers, out-of-memory errors, Ctrl-C, imports and private names of libraries."""
