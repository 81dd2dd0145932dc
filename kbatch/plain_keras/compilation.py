"""The compilation of a model that keeps the loss and the metrics that it was built with."""

import inspect

import keras

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


def check_passes(model, loss):
    """Stop where the mean over passes is not the mean over the whole batch, which kbatch takes."""
    losses = keras.tree.flatten(loss)
    masked = any(getattr(each, "_keras_mask", None) is not None for each in model.outputs or ())
    ignored = any(getattr(each, "ignore_class", None) is not None for each in losses)
    by_weight = any(
        getattr(each, "reduction", None) == "mean_with_sample_weight" for each in losses
    )
    if masked or ignored or by_weight:
        raise NotImplementedError(
            "With a mask, ignore_class or mean_with_sample_weight the mean over passes is not that "
            "over the whole batch, which kbatch takes. Take the whole batch in one pass: leave out "
            "gradient_accumulation_steps, and give batches() the whole size."
        )
