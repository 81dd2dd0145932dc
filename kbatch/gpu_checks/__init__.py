"""GPU checks: what only a real GPU can show, each check in a process of its own.

`python -m kbatch.gpu_checks` runs them all; `kbatch doctor --gpu` runs the quick ones.
"""
