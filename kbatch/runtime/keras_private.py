"""Private names of Keras that kbatch needs, one small function for each.

Each function says which file of which release the name was read in;
`tests/test_keras_private.py` fails when a release takes one away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NAME_COUNTERS = "object_name_uids"  # keras/src/utils/naming.py, Keras 3.15.1
# keras/src/utils/rng_utils.py and keras/src/random/seed_generator.py, Keras 3.15.1
SEEDS = ("global_random_seed", "global_seed_generator")
# keras/src/optimizers/base_optimizer.py, Keras 3.15.1
DECAY_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """Return the sums of gradients of an optimizer that accumulates; `None` for sparse ones.

    `BaseOptimizer._accumulated_gradients`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    return list(optimizer._accumulated_gradients)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments that a compiled model was compiled with, by name.

    `Trainer._compile_config`, keras/src/trainers/trainer.py, Keras 3.15.1.
    """
    return dict(model._compile_config.config)


def copy_decay_exclusions(source: Any, target: Any) -> None:
    """Exclude from the weight decay of one optimizer what another excludes.

    `exclude_from_weight_decay` keeps its arguments in two attributes that are not in the config:
    keras/src/optimizers/base_optimizer.py, Keras 3.15.1.
    """
    for name in DECAY_EXCLUSIONS:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def flatten_layers(layer: Any) -> list[Any]:
    """A layer and all layers inside of it.

    `Layer._flatten_layers`, keras/src/layers/layer.py, Keras 3.15.1.
    """
    return list(layer._flatten_layers())


def global_attributes(names: Iterable[str]) -> dict[str, Any]:
    """Return attributes of Keras' global state, such as `NAME_COUNTERS`; `None` where not set.

    `get_global_attribute`, keras/src/backend/common/global_state.py, Keras 3.15.1.
    """
    from keras.src.backend.common import global_state

    return {name: global_state.get_global_attribute(name) for name in names}


def learning_rate_setting(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer as it was given: variable, schedule or function.

    `BaseOptimizer._learning_rate`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1; the public
    `learning_rate` returns the current value of a schedule.
    """
    return optimizer._learning_rate


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has attached to a tensor, or `None`.

    `get_keras_mask`, keras/src/backend/common/masking.py, Keras 3.15.1.
    """
    from keras.src.backend.common.masking import get_keras_mask

    return get_keras_mask(tensor)


def passes(optimizer: Any) -> Any:
    """Return the variable that counts the passes of an optimizer.

    `BaseOptimizer._iterations`, keras/src/optimizers/base_optimizer.py, Keras 3.15.1; the public
    `iterations` counts weight updates where an optimizer accumulates.
    """
    return optimizer._iterations


def set_global_attributes(values: Mapping[str, Any]) -> None:
    """Set attributes of Keras' global state; `None` removes one.

    `set_global_attribute`, keras/src/backend/common/global_state.py, Keras 3.15.1.
    """
    from keras.src.backend.common import global_state

    for name, value in values.items():
        global_state.set_global_attribute(name, value)
