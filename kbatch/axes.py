"""The axes of a search, one entry in one table.

`Space`, the hyperparameters of KerasTuner, the columns of results, the memory table and the options
of the command line are all derived from this table.
"""

from __future__ import annotations

from kbatch.axis import (
    Axis,
    Option,
    among,
    as_in_recipe,
    average_in_memory,
    batch_size_of,
    between,
    method_in_memory,
    name_of,
    names,
    numbers,
    numbers_or_none,
    one_of,
    passes_of,
    rate_of,
    strategy_of,
    whole_numbers,
    words,
)
from kbatch.recipe_words import (
    ADAMS,
    AUGMENTATIONS,
    COMPILED,
    NORMALIZATIONS,
    OPTIMIZERS,
    POLICIES,
    SCHEDULES,
)
from kbatch.rules import scaling

# optimizers whose learning rate is an axis
RATED = tuple(name for name in OPTIMIZERS if name != COMPILED)


def _rates(optimizer: str, title: str, searched: str) -> Axis:
    """Return the axis of the learning rate of one optimizer."""
    option = Option(
        f"{optimizer}-rates",
        f"Learning rates of {title} at batch 32, lowest:highest.",
        between(1e-9, 100.0),
        searched,
    )
    return Axis(
        f"learning_rate_{optimizer}",
        rate_of,
        None,
        option,
        in_recipe=False,
        only_if=("optimizer", (optimizer,)),
        of="learning_rate",
    )


def _rule(name: str, rules: tuple[str, ...], of: str, default: str) -> Axis:
    """Return the axis of the rule by which a setting changes with the batch size."""
    option = Option(
        f"{name.replace('_', '-')}s",
        f"Rules for {of} as the batch grows: {', '.join(rules)}.",
        names(rules),
        default,
    )
    return Axis(name, among(name, rules), (default,), option, in_recipe=False)


AXES = (
    Axis(
        "policy",
        among("policy", POLICIES),
        option=Option(
            "policies",
            f"{', '.join(POLICIES)}.",
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
        Option("optimizers", f"{', '.join(RATED)}.", names(RATED), "sgd,adam"),
        decides_memory=True,
    ),
    _rates("sgd", "SGD", "0.002:0.02"),
    _rates("adam", "Adam", "0.0001:0.001"),
    _rates("adamw", "AdamW", "0.0001:0.001"),
    _rates("lars", "LARS", "0.3:10"),
    _rates("lamb", "LAMB", "0.0005:0.02"),
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
            "Activations recomputed: none, minimal, sqrt, stages, blocks, segments:4, budget:0.5.",
            words,
            "none",
        ),
        decides_memory=True,
    ),
    Axis("warmup_passes", passes_of, (1.0,), in_recipe=False, of_optimizer=True),
    Axis(
        "augmentation",
        name_of,
        ("none",),
        Option(
            "augmentations",
            f"{', '.join(AUGMENTATIONS)}.",
            names(AUGMENTATIONS),
            "none,flip,flip_shift",
        ),
    ),
    Axis(
        "label_smoothing",
        as_in_recipe("label_smoothing"),
        (0.0,),
        Option(
            "label-smoothing",
            "Share of each label spread over all classes, such as 0,0.1.",
            numbers,
            "0",
        ),
        decides_memory=True,
    ),
    Axis(
        "weight_decay",
        as_in_recipe("weight_decay"),
        (0.0,),
        Option(
            "weight-decays", "Decoupled weight decay at batch 32, such as 0,0.01.", numbers, "0"
        ),
        of_optimizer=True,
    ),
    _rule("weight_decay_rule", scaling.WEIGHT_DECAY_RULES, "weight decay", "sqrt"),
    Axis(
        "momentum",
        as_in_recipe("momentum"),
        (0.9,),
        Option("momentums", "Momentum, or beta_1, at batch 32.", numbers, "0.9"),
        of_optimizer=True,
    ),
    Axis(
        "beta_2",
        as_in_recipe("beta_2"),
        (0.999,),
        Option("beta-2", "beta_2 of the Adam family, at all batch sizes.", numbers, "0.999"),
        only_if=("optimizer", ADAMS),
        of_optimizer=True,
    ),
    _rule("momentum_rule", scaling.MOMENTUM_RULES, "momentum and moving average", "constant"),
    Axis(
        "dropout_scale",
        as_in_recipe("dropout_scale"),
        (1.0,),
        Option("dropout-scales", "Factors on the model's dropout at batch 32.", numbers, "1"),
    ),
    _rule("dropout_rule", scaling.DROPOUT_RULES, "dropout", "constant"),
    Axis(
        "schedule",
        among("schedule", SCHEDULES),
        ("constant",),
        Option(
            "schedules", f"Learning rate: {', '.join(SCHEDULES)}.", names(SCHEDULES), "constant"
        ),
        of_optimizer=True,
    ),
    Axis(
        "training",
        as_in_recipe("training"),
        ("plain",),
        Option("training", "plain, sam:0.05, proximal:0.1.", words, "plain"),
        decides_memory=True,
        like_in_memory=method_in_memory,
    ),
    Axis(
        "clip_norm",
        as_in_recipe("clip_norm"),
        (None,),
        Option("clip-norms", "Largest norms of the gradient; 0 for none.", numbers_or_none, "0"),
        of_optimizer=True,
        absent=0.0,
    ),
    Axis(
        "ema",
        as_in_recipe("ema"),
        (None,),
        Option(
            "ema",
            "Momentums at batch 32 of the weights' moving average; 0 for none.",
            numbers_or_none,
            "0",
        ),
        decides_memory=True,
        like_in_memory=average_in_memory,
        absent=0.0,
    ),
    Axis(
        "batch_schedule",
        as_in_recipe("batch_schedule"),
        ("constant",),
        Option(
            "batch-schedules",
            "constant, or linear, exponential, steps, plateau, noise with a factor: linear:8.",
            words,
            "constant",
        ),
        of_optimizer=True,
    ),
    Axis(
        "normalization",
        among("normalization", NORMALIZATIONS),
        ("batch",),
        Option(
            "normalizations",
            "batch, or group in place of batch normalization.",
            names(NORMALIZATIONS),
            "batch",
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
RESERVED = frozenset((*AXIS, "micro_batch_size", "learning_rate", "kbatch_repeat"))
