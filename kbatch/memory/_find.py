"""Finder: the largest batch that safely trains, for one recipe."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.errors import SearchError, in_one_frame
from kbatch.memory import _cache
from kbatch.memory._estimate import SpeedBound
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import MaxBatch, Probe, SearchResult
from kbatch.memory._prober import TIMEOUT_SECONDS, Prober, shown_lines
from kbatch.memory._search import (
    ALLOWED,
    Prediction,
    SizeOptions,
    approach,
    at_once,
    computed,
    conclude,
    nothing_fits,
    predict,
    size_after,
)
from kbatch.memory._workload import check_size, workload_of
from kbatch.model_spec import ModelArguments, ModelSpec, check_names, shows
from kbatch.recipe import Recipe
from kbatch.runtime import device, device_memory, nvidia

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FinderArguments(ModelArguments, total=False):
    """Arguments by name of `find_max_batch` and `max_batches`: the model's and the worker's."""

    timeout_seconds: float
    fresh: bool
    on_probe: Callable[[Probe], None] | None


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker is used."""

    timeout_seconds: float = TIMEOUT_SECONDS  # after which a probe counts as hung
    fresh: bool = False  # whether to measure again what was measured before
    on_probe: Callable[[Probe], None] | None = None  # called with every probe


def parted(build: Any, arguments: FinderArguments) -> tuple[ModelSpec, WorkerOptions]:
    """Part arguments by name into those of the model and those of the worker."""
    names = {each.name for each in dataclasses.fields(WorkerOptions)}
    check_names(arguments, [*names, *ModelArguments.__annotations__])
    of_model = {name: value for name, value in arguments.items() if name not in names}
    of_worker = {name: value for name, value in arguments.items() if name in names}
    return ModelSpec.of(build, **of_model), WorkerOptions(**of_worker)  # type: ignore[arg-type]


def lower_size(one: int | None, other: int | None) -> int | None:
    """The lower of two bounds, each of which may be missing."""
    return min((bound for bound in (one, other) if bound is not None), default=None)


@shows(ModelSpec, WorkerOptions)
@in_one_frame
def find_max_batch(
    build: Callable[..., Any] | ModelSpec,
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    memory_limit: int | float | str | None = None,
    ceiling: int | None = None,
    *,
    shape: Any = None,
    sizes: str = "any",
    confirmed_steps: int = MARGINS.confirmed_steps,
    **arguments: Unpack[FinderArguments],
) -> MaxBatch:
    """Find the largest batch size that safely trains a model by a recipe on this device.

    Use it before anything else in a process touches the GPU. The finder predicts the need from a
    trace of the train step and corrects the prediction by probes. With `jit_compile`, XLA's buffer
    assignment tells the need exactly. A fresh process that has 7 % less memory then confirms the
    answer, since without XLA the need varies from step to step. Where steps are slow and the model
    has no convolutions and loops, the predicted size is confirmed before any other: if it passes as
    predicted, that is all. The search also stops at the number of examples, and where larger
    batches gain no speed.

    Answers are kept on disk (`$KBATCH_CACHE`, else `~/.cache/kbatch`) under the traced train step,
    recipe, device, limit and versions. A second call makes and traces the model, and trains
    nothing.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, or a `kbatch.ModelSpec`.
        x: Array, nested structure of arrays, `tf.data.Dataset` of examples or of batches,
            `keras.utils.PyDataset`, or the shape of one example, such as `(224, 224, 3)` or
            `keras.KerasTensor`s. With data, the answer is at most their number. Making a dataset
            lets TensorFlow take the GPU: there, pass arrays or a shape. Defaults to the shape of
            the model's `keras.Input`.
        y: Labels, for arrays. With shapes, labels that fit the loss are made. Optional.
        recipe: `Recipe` to train by. Its batch size is not used. Of a recipe that accumulates, the
            number of passes per update is kept, and the answer is the largest micro-batch.
            Defaults to `Recipe()`, which trains with Adam. For the optimizer that `build` compiles
            with, pass `Recipe(optimizer="compiled", learning_rate=None)`.
        memory_limit: Bytes that the device may use, as a number or such as `"8GB"`. Defaults to
            what a GPU has, and on a CPU to `TF_CPU_BFC_MEM_LIMIT_IN_MB`.
        ceiling: Integer, the largest batch size to try. Optional.
        shape: Shape of one example of `x`, such as `(512,)`, nested as `x` is. Defaults to the
            longest that the data have: a dataset that leaves sizes open, and a `PyDataset`, are
            read once for their shapes, for 20 seconds at most. Of several sizes that differ, the
            largest of each is taken. The answer names the shape.
        sizes: `"any"`, `"powers_of_two"` or `"multiples_of_8"`. Defaults to `"any"`.
        confirmed_steps: Integer, steps that a confirmation trains with 7 % less memory, before a
            full and a partial validation batch; `0` confirms nothing. Defaults to `20`. Up to that
            number slow steps that need alike may be fewer, from six on.
        **arguments: `loss`, `metrics`, `seed`, `values` and `declare` as for `kbatch.ModelSpec`,
            and: `timeout_seconds`, float, after which a probe counts as hung (defaults to `600`;
            a confirmation has 30 seconds and four times what the probes let expect);
            `fresh`, boolean, whether to measure again what was measured before (defaults to
            `False`); `on_probe`, function called with every `Probe` (defaults to a printed line
            each, in a terminal or a notebook).

    Returns:
        The `MaxBatch`; its `str()` is one sentence.

    Raises:
        MemoryLimitError: If there is no limit, not even one example fits, or TensorFlow holds the
            GPU already.
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    recipe = kbatch.Recipe(policy="mixed_float16")
    result = kbatch.find_max_batch(build, x, y, recipe, memory_limit="8GB")
    print(result)  # batch 96 uses 7.1 of 8.0 GB; 112 is too large; confirmed with 20 steps
    ```
    """
    spec, worker = parted(build, arguments)
    workload, examples = workload_of(spec, x, y, recipe or Recipe(), shape)
    options = SizeOptions(
        lower_size(check_size("ceiling", ceiling), examples), sizes, confirmed_steps
    )
    check_options(options)
    limit_bytes = device_memory.checked_limit(memory_limit)
    said = {
        "what": "max_batch",
        **room(limit_bytes),
        "timeout_seconds": worker.timeout_seconds,
        "options": dataclasses.asdict(options),
    }
    with Prober(
        workload,
        limit_bytes,
        worker.timeout_seconds,
        shown_lines(worker.on_probe),
        device.without_gpu(),
    ) as prober:
        model = {
            "model": prober.digest(),
            "shapes": workload.shapes,
            "recipe": workload.recipe.to_json(),
        }
        name = _cache.key({**said, **model})
        known = None if worker.fresh else _cache.load_as(name, MaxBatch.from_dict)
        if known is not None:
            return dataclasses.replace(known, shape=workload.at)
        device.check_gpu_free()
        result = find(prober, options)
    if all(probe.ended != "hung" for probe in (*result.probes, *result.confirmations)):
        _cache.save(name, dataclasses.asdict(result))
    return result


def find(prober: Prober, options: SizeOptions) -> MaxBatch:
    """The largest batch size of the prober's workload."""
    began = time.perf_counter()
    prediction = predict(prober, options)
    result, speed = _trained(prober, prediction, options)
    if not result.batch_size:
        raise nothing_fits(result.last, prediction.model)
    flat = speed.flat
    return MaxBatch(
        batch_size=result.batch_size,
        peak_bytes=result.peak_bytes,
        limit_bytes=prober.limit_bytes or prediction.limit_bytes,
        first_failing=result.first_failing,
        probes=(*speed.probes, *result.probes),
        confirmations=result.confirmations,
        confirmed_steps=result.confirmed_steps,
        predicted=prediction.largest(prediction.limit_bytes),
        ceiling=options.ceiling,
        recipe=prober.workload.recipe,
        seconds=time.perf_counter() - began,
        no_faster_from=_reached(flat, result.batch_size, options),
        why_failing=result.why_failing,
        most_examples=_reached(_counted(prediction, options), result.batch_size, options),
        shape=prober.workload.at,
    )


def _trained(
    prober: Prober, prediction: Prediction, options: SizeOptions
) -> tuple[SearchResult, SpeedBound]:
    """The largest size, confirmed, and where larger ones stop being faster."""
    small, first = at_once(prober, prediction, options)
    if first is None:
        known = approach(prober, prediction, options)
        result, speed = conclude(prober, known, options), known.speed
    else:
        result, speed = _after(first, prober, prediction, options)
    if small is not None:
        result = dataclasses.replace(result, probes=(small, *result.probes))
    return result, speed


def _after(
    first: Probe, prober: Prober, prediction: Prediction, options: SizeOptions
) -> tuple[SearchResult, SpeedBound]:
    """The same where the predicted size was confirmed before any other, or failed to be."""
    if not first.passed:
        lower = int(first.batch_size * (1 - MARGINS.step_down))
        known = computed(max(1, options.allowed(lower)), prediction, options)
    else:
        size = size_after(first, prediction, options)
        if size == first.batch_size:
            return SearchResult.of((), (first,)), SpeedBound()
        known = computed(size, prediction, options)
        if first.peak_bytes < MARGINS.correcting * prediction.bytes_at(first.batch_size):
            known = approach(prober, prediction, options)
    result = conclude(prober, known, options)
    if result.batch_size != first.batch_size:
        result = SearchResult.of(result.probes, (first, *result.confirmations))
    return result, known.speed


def _reached(bound: int | None, batch_size: int, options: SizeOptions) -> int | None:
    """A bound, such as the size from which on speed is flat, if the answer is not below it."""
    if bound is None or batch_size < options.allowed(bound):
        return None
    return bound


def _counted(prediction: Prediction, options: SizeOptions) -> int | None:
    """The largest size whose tensors can be counted, if that is below the ceiling."""
    return prediction.most_examples if prediction.most_examples < options.largest else None


def room(limit_bytes: int | None) -> dict[str, Any]:
    """The limit that an answer depends on; without one, the card's memory and what is free now."""
    return {"limit": limit_bytes if limit_bytes is not None else nvidia.memory_bytes()}


def check_options(options: SizeOptions) -> None:
    """Refuse options that name no known sizes or no whole number of steps."""
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
