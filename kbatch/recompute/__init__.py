"""Recompute: gradient checkpointing for Functional and Sequential models, exact to the bit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
