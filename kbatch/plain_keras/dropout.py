"""Dropout of a model, scaled."""

import keras


def scale_dropout(model, factor):
    """Multiply the rates of dropout, also in nested models; a rate is raised to 0.5 at most."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = min(layer.rate * factor, max(0.5, layer.rate))
        elif isinstance(layer, keras.Model):
            scale_dropout(layer, factor)
