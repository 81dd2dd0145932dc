"""Trainings of a search that a function of the test makes: what a project keeps of them is real."""

from types import SimpleNamespace
from unittest import mock

from kbatch import Outcome
from kbatch.models.start import Start
from kbatch.training import search
from kbatch.training import trial as training_trial
from kbatch.training.arguments import FitArguments
from kbatch.training.progress import Watcher

SCORE = 0.02


def trained():
    """What a training gave."""
    return Outcome(ended="horizon", value=0.7)


def once(project, job, train=trained, forget=lambda: None):
    """The record of a job; if the project has none, a function gives the outcome."""
    goal = SimpleNamespace(seconds=1.0, note="", score=lambda outcome: SCORE)
    model_maker = SimpleNamespace(own_policy="float32", start=Start())
    trial = SimpleNamespace(
        failure=None, model=None, measured=lambda outcome: outcome, forget=forget
    )
    shared = (project, model_maker, None, None, goal, FitArguments(x=None), Watcher())
    made = search.Search(*shared, training_trial.LocalTrainer(model_maker, None, goal))
    with mock.patch.object(training_trial, "run", side_effect=lambda *_: train()):
        return made.train(job, trial, callbacks=[])
