"""The finder: the largest batch that safely trains, for one recipe."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from kbatch.device import gpu_in_use, limit, utilisation
from kbatch.errors import MemoryLimitError, SearchError
from kbatch.memory import _cache
from kbatch.memory._margins import MARGINS, Margins
from kbatch.memory._max_batch import MaxBatch
from kbatch.memory._next_size import ALLOWED
from kbatch.memory._probe import Probe
from kbatch.memory._probe_lines import shown
from kbatch.memory._prober import TIMEOUT_SECONDS, Prober
from kbatch.memory._search import (
    Probing,
    SearchOptions,
    approach,
    conclude,
    nothing_fits,
    predict,
)
from kbatch.memory._workload import Workload, sample_of
from kbatch.recipe import Recipe, whole_number


def find_max_batch(
    build: Callable[..., Any],
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    memory_limit: int | float | str | None = None,
    ceiling: int | None = None,
    *,
    loss: Any = None,
    metrics: Any = None,
    sizes: str = "any",
    confirmed_steps: int = MARGINS.confirmed_steps,
    timeout_seconds: float = TIMEOUT_SECONDS,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    fresh: bool = False,
    on_probe: Callable[[Probe], None] | None = None,
) -> MaxBatch:
    """The largest batch size that safely trains a model by a recipe on this device.

    Use it before anything else in a process touches the GPU. It predicts the need from a trace
    (from XLA's buffer assignment with `jit_compile`), corrects it by one probe, and trains what is
    near the limit in a fresh process that has 7 % less: the answer has that to spare, since without
    XLA the need varies from step to step. It stops at the number of examples, and where larger
    batches gain no speed. Answers are kept on disk (`$KBATCH_CACHE`, else
    `~/.cache/kbatch`) under the traced train step, recipe, device, limit and versions: asked again,
    the model is made and traced, and nothing is trained.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: Array, nested structure of arrays, `tf.data.Dataset` of examples or of batches,
            `keras.utils.PyDataset`, or the shape of one example, such as `(224, 224, 3)` or
            `keras.KerasTensor`s. With data, the answer is at most their number. To make a dataset
            is to make TensorFlow hold a GPU: there, pass arrays or a shape. Defaults to the shape
            of the model's `keras.Input`.
        y: Labels, for arrays. With shapes they are made to fit the loss. Optional.
        recipe: `Recipe` to train by. Its batch size is not used; of an accumulating recipe the
            number of passes per update is kept and the answer is the largest micro-batch. Defaults
            to `Recipe()`.
        memory_limit: Bytes that the device may use, as a number or such as `"8GB"`. Defaults to
            what a GPU has, and on a CPU to `TF_CPU_BFC_MEM_LIMIT_IN_MB`.
        ceiling: Integer, the largest batch size to try. Optional.
        loss: Loss, if `build` does not compile.
        metrics: Metrics, if `build` does not compile.
        sizes: `"any"`, `"powers_of_two"` or `"multiples_of_8"`. Defaults to `"any"`.
        confirmed_steps: Integer, steps to train at the answer with 7 % less memory, before a full
            and a partial validation batch;
            `0` leaves the confirmation out. Defaults to `20`.
        timeout_seconds: Float, after which a probe is taken to hang. Defaults to `600`. A
            confirmation has 30 seconds and four times what the probes let expect: what takes longer
            only waits for memory.
        seed: Integer, seed of the weights. Defaults to `0`.
        values: Values of the hyperparameters that `build(hp)` declares; the others take their
            defaults.
        fresh: Boolean, whether to measure again what was measured before. Defaults to `False`.
        on_probe: Function called with every `Probe`, as soon as it is known. Defaults to a line
            each where people see it.

    Returns:
        The `MaxBatch`; its `str()` is one sentence.

    Raises:
        MemoryLimitError: If there is no limit, not even one example fits, or TensorFlow holds the
            GPU already.
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    found = kbatch.find_max_batch(build, x, y, kbatch.Recipe(policy="mixed_float16"), memory_limit="8GB")
    print(found)  # batch 96 uses 7.1 of 8.0 GB; 112 is too large; confirmed with 20 steps
    ```
    """
    sample, examples = sample_of(x, y)
    recipe = recipe or Recipe()
    workload = Workload(
        build,
        sample,
        recipe,
        loss,
        metrics,
        seed,
        values=dict(values or {}),
        pipelines=pipelines((recipe.augmentation,)),
    )
    options = SearchOptions(
        smaller(check_size("ceiling", ceiling), examples), sizes, confirmed_steps
    )
    check_options(options)
    limit_bytes = limit.checked(memory_limit)
    facts = {
        "what": "max_batch",
        **room(limit_bytes),
        "timeout_seconds": timeout_seconds,
        "options": dataclasses.asdict(options),
    }
    with Prober(
        workload, limit_bytes, timeout_seconds, shown(on_probe), gpu_in_use.environment()
    ) as prober:
        name = _cache.key(
            {
                **facts,
                "model": prober.digest(),
                "shapes": workload.shapes,
                "recipe": recipe.to_json(),
            }
        )
        known = None if fresh else _cache.load(name)
        if known is not None:
            return MaxBatch.from_dict(known)
        gpu_in_use.check_free()
        found = find(prober, options)
    if all(probe.ended != "hung" for probe in (*found.probes, *found.confirmations)):
        _cache.save(name, dataclasses.asdict(found))
    return found


def find(prober: Probing, options: SearchOptions, margins: Margins = MARGINS) -> MaxBatch:
    """The largest batch size of the prober's workload.

    Raises:
        MemoryLimitError: If not even one example fits.
        ModelError: If the model does not train at any batch size.
    """
    began = time.perf_counter()
    prediction = predict(prober, options, margins)
    known = approach(prober, prediction, options, margins)
    result = conclude(prober, known, options, margins)
    if not result.batch_size:
        raise nothing_fits(result.last, prediction.model)
    flat = known.speed.flat
    return MaxBatch(
        batch_size=result.batch_size,
        peak_bytes=result.peak_bytes,
        limit_bytes=prober.limit_bytes or prediction.limit_bytes,
        first_failing=result.first_failing,
        probes=(*known.speed.probes, *result.probes),
        confirmations=result.confirmations,
        confirmed_steps=result.confirmed_steps,
        predicted=prediction.largest(prediction.limit_bytes),
        ceiling=options.ceiling,
        recipe=prober.workload.recipe,
        seconds=time.perf_counter() - began,
        no_faster_from=_reached(flat, result.batch_size, options),
    )


def _reached(flat: int | None, batch_size: int, options: SearchOptions) -> int | None:
    """The size from which on speed is flat, if that is why the answer is not larger."""
    if flat is None or batch_size < options.allowed(flat):
        return None
    return flat


def room(limit_bytes: int | None) -> dict[str, Any]:
    """The limit as an answer depends on it: without one, what the card has and what of it is free now."""
    return {"limit": limit_bytes if limit_bytes is not None else utilisation.memory_bytes()}


def pipelines(names: tuple[str, ...]) -> dict[str, Any]:
    """The user's own augmentation pipelines out of these, which the worker does not know."""
    augmentation = sys.modules.get("kbatch.data.augmentation")
    return {} if augmentation is None else augmentation.registered(names)


def check_size(name: str, size: int | None) -> int | None:
    """Refuse a batch size that is no whole number of at least 1."""
    if size is None:
        return None
    whole = whole_number(size)
    if whole is None:
        raise MemoryLimitError(
            f"`{name}` must be a whole number of at least 1",
            size,
            "Pass a batch size, or leave it out",
        )
    return whole


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits, each of which may be missing."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def check_options(options: SearchOptions) -> None:
    """Refuse names that are unknown."""
    if options.sizes not in ALLOWED:
        raise SearchError(
            f"`sizes` must be one of {', '.join(ALLOWED)}", options.sizes, "Pass one of these names"
        )
    if not isinstance(options.confirmed_steps, int) or options.confirmed_steps < 0:
        raise SearchError(
            "`confirmed_steps` must be a whole number of at least 0",
            options.confirmed_steps,
            "Pass 20, say",
        )
