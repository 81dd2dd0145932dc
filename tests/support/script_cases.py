"""Recipes whose code is compared with `kbatch.train`, by name."""

from kbatch import Recipe

SGD = {"batch_size": 24, "optimizer": "sgd", "learning_rate": 0.05}
ADAM = {"batch_size": 24, "optimizer": "adam", "learning_rate": 0.01}
PASSES = {"micro_batch_size": 8}
CASES = {
    "sgd": SGD,
    "adam decay": {**ADAM, "weight_decay": 0.01, "momentum": 0.8},
    "adamw warm-up": {**ADAM, "optimizer": "adamw", "weight_decay": 0.02, "warmup_updates": 3},
    "lamb cosine": {**ADAM, "optimizer": "lamb", "schedule": "cosine"},
    "lars steps": {**SGD, "optimizer": "lars", "weight_decay": 0.01, "schedule": "steps"},
    "passes": {**SGD, **PASSES, "warmup_updates": 3, "schedule": "cosine", "clip_norm": 0.5},
    "adam passes ema": {**ADAM, **PASSES, "ema": 0.7},
    "ema": {**ADAM, "ema": 0.7},
    "smoothing": {**SGD, "label_smoothing": 0.2},
    "mixed_float16": {**SGD, "policy": "mixed_float16"},
    "mixed_bfloat16 passes": {**ADAM, **PASSES, "policy": "mixed_bfloat16"},
    "float16 passes": {**SGD, **PASSES, "policy": "float16", "clip_norm": 0.5},
    "float8": {**SGD, "policy": "float8", "ema": 0.7},
    "jit": {**SGD, "jit_compile": True, "clip_norm": 0.3},
    "dropout": {**SGD, "dropout_scale": 1.5},
    "group": {**SGD, "normalization": "group"},
    "sam": {**SGD, "training": "sam:0.1"},
    "sam ema clip": {**ADAM, "beta_2": 0.9, "training": "sam:0.1", "ema": 0.7, "clip_norm": 0.3},
    "proximal": {**SGD, "training": "proximal:0.5:4"},
    "proximal ema": {**SGD, "training": "proximal:0.5", "ema": 0.7, "policy": "mixed_float16"},
    "linear growth": {**SGD, "batch_schedule": "linear:4"},
    "growth passes": {**ADAM, **PASSES, "batch_schedule": "exponential:3", "schedule": "cosine"},
    "growth steps": {**SGD, "batch_schedule": "steps:4", "warmup_updates": 2, "schedule": "steps"},
    "all": {
        **ADAM,
        **PASSES,
        "policy": "mixed_float16",
        "warmup_updates": 2,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "ema": 0.8,
        "label_smoothing": 0.1,
        "dropout_scale": 0.5,
    },
}
RECIPES = {name: Recipe(**fields) for name, fields in CASES.items()}
