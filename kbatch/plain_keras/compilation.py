"""The compilation of a model that keeps the loss and the metrics that it was built with."""

import inspect

import keras
import numpy as np

KEPT_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")


def built(build_model, loss, metrics):
    """Return a new model, and the arguments to compile it with besides those of the recipe.

    A model that build_model() compiles keeps its own; loss and metrics are for one that it does
    not compile.
    """
    # the class that defines it, as Keras loads no compiled model where a subclass overrides it
    owner = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    said, compiled = {}, owner.compile

    def noted(model, *arguments, **named):
        found = inspect.signature(compiled).bind(model, *arguments, **named).arguments
        said[id(model)] = {name: found[name] for name in KEPT_ARGUMENTS if name in found}
        compiled(model, *arguments, **named)

    owner.compile = noted
    try:
        model = build_model()
    finally:
        owner.compile = compiled
    if id(model) in said:
        return model, said[id(model)]
    if model.compiled:
        raise ValueError(
            "A model must be compiled inside of build_model(), which keeps its loss and metrics. "
            "Received one that was compiled before. Build and compile a new one there."
        )
    if loss is None:
        raise ValueError(
            "A model that build_model() does not compile must be given a loss. Received none. "
            "Pass loss= and metrics= to train(), as the search had them."
        )
    return model, {"loss": loss, "metrics": metrics}


def check_passes(model, loss, x, y, sample_weight):
    """Stop where the mean over passes is not the mean over the whole batch, which kbatch takes."""
    losses = keras.tree.flatten(loss)
    masked = any(getattr(each, "_keras_mask", None) is not None for each in model.outputs or ())
    ignored = any(getattr(each, "ignore_class", None) is not None for each in losses)
    by_weight = any(
        getattr(each, "reduction", None) == "mean_with_sample_weight" for each in losses
    )
    if masked or ignored or by_weight or couples_examples(model, x, y, sample_weight):
        raise NotImplementedError(
            "The loss of a whole batch must be the mean of its passes, as kbatch took it. Received "
            "one that is not: a mask, ignore_class, mean_with_sample_weight, or a loss of examples "
            "together. Take the whole batch in one pass: leave out gradient_accumulation_steps, "
            "and give batches() the whole size."
        )


def couples_examples(model, x, y, sample_weight):
    """Tell whether the loss of 64 examples is not the mean of those of two halves."""
    count = min(64, len(keras.tree.flatten(x)[0])) // 2 * 2
    labels = np.asarray(keras.tree.flatten(y)[0][:count]).reshape(count, -1)
    order = np.arange(count)
    if np.issubdtype(labels.dtype, np.number):  # halves as different as they can be
        order = np.argsort(labels.mean(axis=1), kind="stable")

    def of(data, rows):
        return keras.tree.map_structure(lambda part: np.asarray(part[:count])[rows], data)

    def value(rows):
        weights = None if sample_weight is None else of(sample_weight, rows)
        inputs = of(x, rows)
        outputs = model(inputs, training=False)
        return float(model.compute_loss(inputs, of(y, rows), outputs, weights))

    whole, halves = value(order), [value(half) for half in np.split(order, 2)]
    return abs(whole - sum(halves) / 2) > 1e-3 * abs(whole)
