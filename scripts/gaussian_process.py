"""kbatch's search with a Gaussian process in the place of its estimator; needs torch."""

import functools
import warnings

import optuna

from kbatch.search.proposals import Proposer


class GaussianProposer(Proposer):
    """Proposes as kbatch does, and by Optuna's Gaussian process once it has seen enough.

    The process reads what reached the horizon. Optuna's own default is noise that it estimates.
    """

    def __init__(self, from_whole):
        super().__init__()
        self._from_whole = from_whole  # recipes that reached the horizon

    def _sampler(self, observations, seed):
        whole = [each for each in observations if each.score is not None]
        if len(whole) < self._from_whole:
            return super()._sampler(observations, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)


def from_whole(text):
    """Return what makes such a proposer, which begins after so many whole trainings."""
    return functools.partial(GaussianProposer, int(text))
