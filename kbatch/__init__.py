"""kbatch: a search for the way of training with the most validation accuracy per second.

Begin at `recipe` (one way to train), `space` (what is searched), `hypermodel` and `tuner` (a
search) and `outcome` (what a training measured). Below them are the rooms: `rules` scale a recipe
to its batch, `models` make and compile it, `data` streams examples, `checks` measure what is
assumed, `callbacks` keep the clock, `training` trains and records it in `records`. `memory` finds
the largest batch, `recompute` saves memory, `search` proposes trials. `results`, `advice` and
`page` tell what came of them, `script` writes them as plain Keras, `cli` and `driver` are the
command line.
`docs/design.md` has all of them; `lint-imports` holds their floors, which `pyproject.toml` lists.

Public names are loaded on first use: `import kbatch` imports no TensorFlow.
"""

import lazy_loader

from kbatch.distribution import warn_of_other

__version__ = "0.1.0"

warn_of_other()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
