"""The axes of a search, one entry in one table.

`Space`, the hyperparameters of KerasTuner, the columns of results, the memory table and the options
of the command line are all derived from this table.
"""

from __future__ import annotations

from kbatch.axis import (
    Axis,
    among,
    batch_size_of,
    name_of,
    passes_of,
    rate_of,
    smoothing_of,
    strategy_of,
)
from kbatch.option import Option, between, names, numbers, one_of, whole_numbers, words
from kbatch.recipe import OPTIMIZERS, POLICIES

# optimizers whose learning rate is an axis
RATED = tuple(name for name in OPTIMIZERS if name != "compiled")


def _rates(optimizer: str, title: str, searched: str) -> Axis:
    """Return the axis of the learning rate of one optimizer."""
    option = Option(
        f"{optimizer}-rates",
        f"{title}'s learning rates at batch 32, lowest:highest.",
        between(1e-9, 100.0),
        searched,
    )
    return Axis(
        f"learning_rate_{optimizer}",
        rate_of,
        None,
        option,
        in_recipe=False,
        only_if=("optimizer", optimizer),
        of="learning_rate",
    )


AXES = (
    Axis(
        "policy",
        among("policy", POLICIES),
        option=Option(
            "policies",
            "float32, mixed_float16, mixed_bfloat16.",
            names(POLICIES),
            default_words="float32, with a GPU mixed_float16 too",
        ),
        decides_memory=True,
        of_machine="policies",
    ),
    Axis(
        "optimizer",
        among("optimizer", OPTIMIZERS),
        ("sgd", "adam"),
        Option("optimizers", "sgd, adam.", names(RATED), "sgd,adam"),
        decides_memory=True,
    ),
    _rates("sgd", "SGD", "0.002:0.02"),
    _rates("adam", "Adam", "0.0001:0.001"),
    Axis(
        "jit_compile",
        among("jit_compile", (False, True)),
        option=Option(
            "jit",
            "XLA: off, on or both.",
            one_of({"off": (False,), "on": (True,), "both": (False, True)}),
            default_words="off, with a GPU both",
        ),
        decides_memory=True,
        of_machine="compilations",
    ),
    Axis(
        "recompute",
        strategy_of,
        ("none",),
        Option(
            "recompute",
            "Activations to recompute: none, minimal, sqrt, stages, budget:0.5.",
            words,
            "none",
        ),
        decides_memory=True,
    ),
    Axis("warmup_passes", passes_of, (1.0,), in_recipe=False),
    Axis(
        "augmentation",
        name_of,
        ("none",),
        Option(
            "augmentations",
            "none, flip, flip_shift, flip_shift_contrast.",
            names(("none", "flip", "flip_shift", "flip_shift_contrast")),
            "none,flip,flip_shift",
        ),
    ),
    Axis(
        "label_smoothing",
        smoothing_of,
        (0.0,),
        Option(
            "label-smoothing",
            "Share of each label spread over all classes, such as 0,0.1.",
            numbers,
            "0",
        ),
        decides_memory=True,
    ),
    Axis(  # the last entry, since GridSearch varies the last hyperparameter first
        "batch_size",
        batch_size_of,
        (16, 32, 64, 128, 256, 512),
        Option(
            "batch-sizes",
            "Examples per update.",
            whole_numbers,
            default_words="those of 16,32,64,128,256 that the data hold",
        ),
        preferred=32,
    ),
)
AXIS = {axis.name: axis for axis in AXES}
RESERVED = frozenset((*AXIS, "micro_batch_size", "learning_rate"))
