"""The process and its device: workers, signals, memory, traces and private names of libraries."""
