"""Tracing: the memory that a graph traced by TensorFlow needs; nothing is executed."""
