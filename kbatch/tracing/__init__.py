"""Tracing: what a graph that TensorFlow has traced will hold in memory; nothing is executed."""
