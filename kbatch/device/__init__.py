"""The device: its memory, its errors and its leaks."""
