"""The parts of a recipe that change the model, its batches or its train step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbatch.code.definitions import Definition
from kbatch.code.layout import comment
from kbatch.code.part import Part
from kbatch.recipe_words import (
    AUGMENTATIONS,
    BY_PROGRESS,
    CONSTANT,
    FLOAT8,
    FLOAT16,
    PLAIN,
    SAM,
    policy_of_keras,
)

AUGMENTATION = "kbatch.plain_keras.augmentation"
LAYERS = {
    "flip": 'keras.layers.RandomFlip("horizontal", dtype="float32")',
    "shift": 'RandomShift(0.1, dtype="float32")',
    "contrast": 'keras.layers.RandomContrast(0.3, value_range=(0, 255), dtype="float32")',
}
MIXTURES = {"mixup": "mix_up", "cutmix": "cut_mix"}
# Whether the size of a batch follows from the share of the training that is behind it.


def batch_size(recipe: Any) -> Part:
    """The batch, which the script itself writes."""
    return Part()


def policy(recipe: Any) -> Part:
    """The dtype policy, set before the model is built."""
    if recipe.policy == FLOAT8:
        text = (
            "The Dense and EinsumDense layers without a dtype of their own multiply in float8, all "
            "others in mixed_bfloat16."
        )
        quantized = (
            "model.quantize(\n"
            '    "float8",\n'
            "    filters=lambda layer: (\n"
            "        type(layer) in (keras.layers.Dense, keras.layers.EinsumDense)\n"
            f'        and layer.dtype_policy.name == "{policy_of_keras(FLOAT8)}"\n'
            "    ),\n"
            ")"
        )
        return Part((_policy(recipe),), model=(comment(text), quantized))
    if recipe.policy != FLOAT16:
        return Part((_policy(recipe),))
    cast: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()
    if recipe.steps_per_update > 1:
        cast = ("_accumulate_in_float32(optimizer)",)
        definitions = (Definition("kbatch.models.policies", "_accumulate_in_float32"),)
    scaled = "optimizer = keras.optimizers.LossScaleOptimizer(optimizer)"
    return Part((_policy(recipe),), wrapped=(*cast, scaled), definitions=definitions)


def normalization(recipe: Any) -> Part:
    """Group normalization instead of batch normalization."""
    if recipe.normalization != "group":
        return Part()
    copied = Definition("kbatch.plain_keras.normalization", "group_normalized")
    return Part(model=("model = group_normalized(model)",), definitions=(copied,))


def dropout_scale(recipe: Any) -> Part:
    """The factor on the rates of dropout."""
    if recipe.dropout_scale == 1:
        return Part()
    return Part(
        model=(f"scale_dropout(model, {recipe.dropout_scale!r})",),
        definitions=(Definition("kbatch.plain_keras.dropout", "scale_dropout"),),
    )


def recompute(recipe: Any) -> Part:
    """A comment: Keras trains wrongly or not at all where it recomputes activations."""
    if recipe.recompute == "none":
        return Part()
    text = (
        f'Left out: recompute="{recipe.recompute}". Plain Keras cannot recompute the activations '
        "of a model with dropout or batch normalization and train it as before. The weights are "
        "the same without it, and the training needs more memory."
    )
    return Part(model=(comment(text),))


def label_smoothing(recipe: Any) -> Part:
    """Softened labels of a cross-entropy."""
    if not recipe.label_smoothing:
        return Part()
    copied = Definition("kbatch.plain_keras.label_smoothing", "smoothed")
    return Part(
        model=(f'kept["loss"] = smoothed(kept["loss"], {recipe.label_smoothing!r})',),
        definitions=(copied,),
    )


def jit_compile(recipe: Any) -> Part:
    """Whether XLA compiles the train step."""
    return Part(compilation=(f"jit_compile={recipe.jit_compile}",))


def training(recipe: Any) -> Part:
    """The train step of a method."""
    method = recipe.method
    if method.name == PLAIN:
        return Part()
    step = f"{method.name}_step"
    numbers = f"{method.amount!r}" + ("" if method.name == SAM else f", {method.inner_steps}")
    copied = Definition("kbatch.plain_keras.methods", step)
    return Part(step=(f"model.train_step = {step}(model, {numbers})",), definitions=(copied,))


def augmentation(recipe: Any) -> Part:
    """Augmentation within the train step; a pipeline of the user's is left to him."""
    if recipe.augmentation == "none":
        return Part()
    seeded = "keras.utils.set_random_seed(seed)"
    applied = "model.train_step = augmented(model, augmentation)"
    augmented = Definition(AUGMENTATION, "augmented")
    if recipe.augmentation not in AUGMENTATIONS:
        text = (
            f'TODO: the layers of the augmentation "{recipe.augmentation}", which was registered '
            "with kbatch.register_augmentation. What mixes examples is left out. Where labels are "
            'masks, a layer that moves pictures must take {"images": …, "segmentation_masks": …}, '
            "as Keras' do; what it fills from outside has the label 0, where kbatch leaves it out "
            "of the loss if that takes weights of places."
        )
        stop = (
            "if not augmentation:\n"
            '    raise NotImplementedError("Write the layers of the augmentation above")'
        )
        todo = (comment(text), "augmentation = []", stop, applied)
        return Part(step=todo, definitions=(augmented,))
    words = recipe.augmentation.split("_")
    mixtures = [MIXTURES[word] for word in words if word in MIXTURES]
    layers = [LAYERS[word] for word in words if word in LAYERS]
    steps, definitions = [seeded], []
    if layers:
        steps.append("augmentation = [\n" + "".join(f"    {each},\n" for each in layers) + "]")
        definitions.append(augmented)
    if "shift" in words:
        definitions.append(Definition("kbatch.data.augmentation", "RandomShift"))
    for mixture in mixtures:
        steps.append(f"model.train_step = mixing(model, {mixture})")
        definitions += [Definition(AUGMENTATION, "mixing"), Definition(AUGMENTATION, mixture)]
    if layers:
        steps.append(applied)
    return Part(step=tuple(steps), definitions=tuple(definitions))


def batch_schedule(recipe: Any) -> Part:
    """The growth of the batch, and of the rate with it; by measurements it is left out."""
    if recipe.batch_schedule == CONSTANT:
        return Part()
    if grows(recipe):
        power = "" if recipe.optimizer == "sgd" else " ** 0.5"
        return Part(
            shares=(f"(sizes[update] / {recipe.batch_size}){power}",),
            definitions=(Definition("kbatch.plain_keras.growth", "growing_sizes"),),
        )
    text = (
        f'Left out: batch_schedule="{recipe.batch_schedule}", whose sizes follow from measurements '
        f"in the training. The batch is {recipe.batch_size} from the beginning."
    )
    return Part(step=(comment(text),))


def grows(recipe: Any) -> bool:
    """Tell whether the code lets the batch of a recipe grow."""
    return recipe.growth.kind in BY_PROGRESS


def _policy(recipe: Any) -> str:
    return f'keras.config.set_dtype_policy("{policy_of_keras(recipe.policy)}")'


PARTS: dict[str, Callable[[Any], Part]] = {
    "batch_size": batch_size,
    "policy": policy,
    "normalization": normalization,
    "dropout_scale": dropout_scale,
    "recompute": recompute,
    "label_smoothing": label_smoothing,
    "jit_compile": jit_compile,
    "training": training,
    "augmentation": augmentation,
    "batch_schedule": batch_schedule,
}
