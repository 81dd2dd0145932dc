"""kbatch: a search for the way of training with the most validation accuracy per second.

- `recipe`: one way to train a model; `space`: what a search varies, one entry of `axes` each.
- `hypermodel`, `tuner`: the search, for any tuner of KerasTuner's and by kbatch's own.
- `outcome`: what a training measures and when, its goal and its score.
- `rules`: what changes with the batch size.
- `data`: examples of all kinds as streams of batches.
- `models`: recipe and the user's `build` make a compiled model.
- `checks`: what kbatch assumes, measured before anything trains.
- `callbacks`: the training clock; the horizon, which measures, keeps weights and ends a run.
- `memory`: the largest batch that trains.
- `recompute`: less memory for a little more time.
- `search`: the oracle, which says what to try next, and the rung, at which a trial may stop.
- `training`: a recipe is trained and measured, and all that belongs to one search.
- `records`: the folder of a search, each training at most once.
- `results`: ranking, intervals and claim, tables, charts, report, page, advice.
- `script`: a recipe as plain Keras.
- `runtime`: the process of TensorFlow, its devices and workers.
- `standin`: a call of `model.fit` as its user wrote it, taken and tuned.
- `cli`: the commands; `studies`: published claims made again; `testing`: trainings replayed.

`docs/design.md` tells one trial's way through them, and `pyproject.toml` their floors. Public names
are loaded on first use: `import kbatch` imports no TensorFlow.
"""

import lazy_loader

from kbatch.distribution import warn_of_other

__version__ = "0.1.0"

warn_of_other()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
