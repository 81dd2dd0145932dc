"""The training device: its memory, its limit and its load."""
