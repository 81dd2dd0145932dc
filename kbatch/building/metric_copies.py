"""Copies of metrics, since a metric holds the state of the model that it was used in."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.runtime import keras_private

PLAIN = (bool, int, float, str, tuple, type(None))  # types of settings, which a copy must keep


def copied(metrics: Any) -> Any:
    """Return metrics without the state, and the devices, of those in use.

    A metric is made again from its config, which a class of the user's own may lack, or write in
    part. Where that fails or loses a setting, the metric itself is returned: Keras resets it before
    each use.

    Args:
        metrics: Structure of metrics, functions and names, as `compile` takes it.
    """
    return keras.tree.map_structure(lambda part: None if part is None else _copied(part), metrics)


def _copied(metric: Any) -> Any:
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return keras_private.fresh_wrapper(metric)
    try:
        fresh = type(metric).from_config(metric.get_config())
    except Exception:  # whatever the constructor raises that Keras calls
        return metric
    return fresh if _settings(fresh) == _settings(metric) else metric


def _settings(metric: Any) -> dict[str, Any]:
    """The plain values that a metric was made with, and counts in if they are no variables."""
    return {name: each for name, each in vars(metric).items() if isinstance(each, PLAIN)}
