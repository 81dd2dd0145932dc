"""Peers that train recipes for shares of the horizon, by their ask and tell.

`bench_lcbench.py` and `bench_peers.py` search by them. They are optional. SMAC3's facade of
Hyperband: `pip install smac`. NePS' PriorBand, whose prior is the start: `pip install
neural-pipeline-search`. DEHB: `pip install --no-deps dehb`, since it asks for a NumPy that
TensorFlow does not take, and `pip install ConfigSpace dask[distributed] loguru`.

The start is trained whole before they are asked. A recipe that is trained further goes on from
where it was, and costs the rest. The recommended recipe is the one that held the highest value, of
whatever share, as DEHB and NePS tell; SMAC3 by itself asks for the largest share.
"""

import contextlib
import io
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LEAST_SHARE = 1 / 9  # of kbatch's marks two come before a 27th, and fewer than three hold no value
SIZES = (16, 32, 64, 128, 256, 512)
RANDOM = 10  # recipes before SMAC3's model; its own default, 70 here, is more than most searches


@dataclass(frozen=True)
class Asked:
    """What a peer wants to be trained, and how it is told of the loss."""

    recipe: dict
    share: float
    tell: Callable[[float], object]


def by_shares(search, start, begin):
    """Search by a peer.

    `begin` takes the start, the value that it held, a seed and an empty folder, and returns a
    function that asks the peer.
    """
    task = search.task
    curves, trained, ranked = {}, {}, []

    def train(recipe, share):
        """The value held after a share of the horizon."""
        key = tuple(recipe[name] for name in sorted(recipe))
        if key not in curves:
            curves[key] = search.train(recipe)
        seconds = share * task.horizon
        held = task.held([point for point in curves[key] if point[0] <= 1.001 * seconds])
        ranked.append((held, recipe))
        best = max(ranked, key=lambda each: each[0])[1]
        search.spend(max(seconds - trained.get(key, 0.0), 0.0), best)
        trained[key] = max(seconds, trained.get(key, 0.0))
        return held

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        held = train(start, 1.0)
        ask = begin(start, held, search.seed, Path(folder))
        while not search.is_over:
            asked = ask()
            asked.tell(-train(asked.recipe, asked.share))


def config_space(axes, start, seed):
    """The axes as a space of ConfigSpace, which SMAC3 and DEHB read."""
    import ConfigSpace

    space = ConfigSpace.ConfigurationSpace(seed=seed)
    for name, *kind_of in axes:
        if name == "batch_size":
            space.add(ConfigSpace.OrdinalHyperparameter(name, SIZES, default_value=start[name]))
            continue
        if len(kind_of) == 1:
            kind = ConfigSpace.CategoricalHyperparameter
            space.add(kind(name, kind_of[0], default_value=start[name]))
            continue
        least, most, is_log, is_whole = kind_of
        kind = ConfigSpace.UniformFloatHyperparameter
        if is_whole:
            kind = ConfigSpace.UniformIntegerHyperparameter
        space.add(kind(name, least, most, default_value=start[name], log=is_log))
    return space


def recipe_of(config):
    """The recipe of a configuration, in Python's numbers."""
    return {name: np.asarray(value).item() for name, value in dict(config).items()}


def smac(axes):
    """SMAC3's facade of Hyperband with a random forest, told the start."""

    def begin(start, held, seed, folder):
        from smac import MultiFidelityFacade, Scenario
        from smac.runhistory.dataclasses import TrialInfo, TrialValue

        space = config_space(axes, start, seed)
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=10**5,
            min_budget=LEAST_SHARE,
            max_budget=1.0,
            seed=seed,
            output_directory=folder,
        )
        found = MultiFidelityFacade(
            scenario,
            lambda config, seed=0, budget=1.0: 0.0,
            logging_level=False,
            initial_design=MultiFidelityFacade.get_initial_design(scenario, n_configs=RANDOM),
            overwrite=True,
        )
        told = TrialInfo(space.get_default_configuration(), seed=0, budget=1.0)
        found.tell(told, TrialValue(cost=-held))

        def ask():
            info = found.ask()
            return Asked(
                recipe_of(info.config),
                info.budget,
                lambda loss: found.tell(info, TrialValue(cost=loss), save=False),
            )

        return ask

    return begin


def dehb(axes):
    """DEHB, which takes no start."""

    def begin(start, held, seed, folder):
        from dehb import DEHB

        space = config_space(axes, start, seed)
        found = DEHB(
            cs=space,
            min_fidelity=LEAST_SHARE,
            max_fidelity=1.0,
            n_workers=1,
            seed=seed,
            output_path=folder,
            log_level="ERROR",
        )

        def ask():
            job = found.ask()
            return Asked(
                recipe_of(job["config"]),
                job["fidelity"],
                lambda loss: found.tell(job, {"fitness": loss, "cost": job["fidelity"]}),
            )

        return ask

    return begin


def priorband(axes):
    """NePS' PriorBand, whose prior is the start."""

    def begin(start, held, seed, folder):
        import neps
        import torch
        from neps.optimizers import algorithms

        random.seed(seed)  # it has no seed of its own
        np.random.seed(seed)
        torch.manual_seed(seed)
        kinds = {
            "batch_size": neps.HPOCategorical(list(SIZES), prior=start["batch_size"]),
            "share": neps.HPOFloat(LEAST_SHARE, 1.0, log=True, is_fidelity=True),
        }
        for name, *kind_of in axes[1:]:
            if len(kind_of) == 1:
                kinds[name] = neps.HPOCategorical(list(kind_of[0]), prior=start[name])
                continue
            least, most, is_log, is_whole = kind_of
            kind = neps.HPOInteger if is_whole else neps.HPOFloat
            kinds[name] = kind(least, most, log=is_log, prior=start[name])
        found = neps.AskAndTell(
            algorithms.priorband(neps.SearchSpace(kinds), sample_prior_first="highest_fidelity")
        )

        def ask():
            trial = found.ask()
            recipe = dict(trial.config)
            share = recipe.pop("share")
            return Asked(recipe, share, lambda loss: found.tell(trial, loss))

        return ask

    return begin


PEERS = {"smac": smac, "dehb": dehb, "priorband": priorband}
