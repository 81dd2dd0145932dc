"""Worker side: one model, traced, and trained a few steps at one batch size after another."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.callbacks.rate import averages
from kbatch.checks import accumulation, state
from kbatch.data import augmentation
from kbatch.data.pipeline import untuned
from kbatch.errors import DataError, KbatchError
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import (
    DUMP,
    TOO_LARGE,
    IsDone,
    ModelFacts,
    Refusal,
    all_are_wanted,
    confirmation_is_done,
    counted_confirmation_is_done,
    slow_probe_is_done,
    waited,
)
from kbatch.memory._workload import Workload
from kbatch.models.exact_accumulation import called_in_passes
from kbatch.models.maker import ModelMaker, check_known_values, unsaid_values
from kbatch.models.policies import policy_scope
from kbatch.models.preprocessor import arrays_of, preprocess_of
from kbatch.models.scopes import augmented
from kbatch.models.traces import make_step_ready, steps_by_shapes
from kbatch.models.train_step import trained_by_method
from kbatch.runtime import device_memory, keras_private, liveness, tensorflow_private
from kbatch.runtime.keras_private import compiled_by_user
from kbatch.runtime.oom import is_out_of_memory, is_suspect
from kbatch.runtime.trace import PRIME, Moment, digest_of, reshaped
from kbatch.runtime.users_code import Imported

SAY_SHAPE = "Pass a shape such as (224, 224, 3), or --shape 224,224,3"
TEXT = "S1"  # NumPy's type for one byte of text


def completed_labels(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample, with labels of the model's outputs added if it has none."""
    if len(sample) > 1:
        return sample
    if not getattr(model, "outputs", None):
        raise DataError(
            "Labels must come with a model whose outputs are not known before it is called",
            "no `y`",
            "Pass `y`",
        )
    rows = len(keras.tree.flatten(sample[0])[0])
    losses = compiled_by_user(model).get("loss")
    names = list(getattr(model, "output_names", [""]))
    made = [
        _zeros(output, _of(losses, index, name), rows)
        for index, (output, name) in enumerate(zip(_outputs(model, sample[0]), names, strict=True))
    ]
    structure = keras_private.output_structure(model)
    return (*sample, made[0] if structure is None else keras.tree.pack_sequence_as(structure, made))


def _outputs(model: keras.Model, inputs: Any) -> list[Any]:
    """The outputs of a model, as long as its inputs make them."""
    if not any(size is None for output in model.outputs for size in output.shape[1:]):
        return list(model.outputs)
    symbols = keras.tree.map_structure(
        lambda array: keras.KerasTensor((None, *array.shape[1:]), array.dtype.name), inputs
    )
    return keras.tree.flatten(model.compute_output_spec(symbols))


def checked_labels(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample, checked against the model's inputs; without one, an example of their shapes."""
    if not sample:
        return (_own_inputs(model),)
    inputs, given = getattr(model, "inputs", None) or [], keras.tree.flatten(sample[0])
    if not inputs:
        return sample
    is_by_name = isinstance(keras_private.input_structure(model), dict)
    if isinstance(sample[0], dict) and not is_by_name:
        # Keras finds the inputs of a functional model by name.
        given = [sample[0][one.name] for one in inputs if one.name in sample[0]]
    shapes = [tuple(array.shape[1:]) for array in given]
    expected = [tuple(one.shape[1:]) for one in inputs]
    fits = len(inputs) == len(given) and all(map(_fits, expected, shapes))
    if not fits:
        raise DataError(
            f"Examples must have the shape of the model's input, {_words(expected)}",
            _words(shapes),
            "Pass data or a shape that fits",
        )
    return sample


def _own_inputs(model: keras.Model) -> Any:
    """An example of zeros of the shape and type of a model's `keras.Input`."""
    inputs = getattr(model, "inputs", None) or []
    if not inputs:
        raise DataError(
            "A model without a keras.Input must be given the shape of one example",
            model.name,
            f"{SAY_SHAPE}, or add a keras.Input",
        )
    shapes = [tuple(one.shape[1:]) for one in inputs]
    if any(size is None for shape in shapes for size in shape):
        raise DataError(
            "A model whose keras.Input leaves sizes open must be given the shape of one example",
            _words(shapes),
            SAY_SHAPE,
        )
    zeros = [
        np.zeros((1, *shape), TEXT if one.dtype == "string" else one.dtype)
        for one, shape in zip(inputs, shapes, strict=True)
    ]
    structure = keras_private.input_structure(model)
    return zeros[0] if structure is None else keras.tree.pack_sequence_as(structure, zeros)


def _fits(expected: Any, given: tuple[int, ...]) -> bool:
    # A model may take (n, 1) for (n,) and the other way round, as Keras' own input check lets it.
    one, other = ([size for size in shape if size != 1] for shape in (expected, given))
    return len(one) == len(other) and all(
        size in (None, found) for size, found in zip(one, other, strict=True)
    )


def _words(shapes: list[Any]) -> str:
    return str(shapes[0]) if len(shapes) == 1 else ", ".join(map(str, shapes))


def _of(losses: Any, index: int, name: str) -> str:
    """The loss of an output, by name."""
    if isinstance(losses, dict):
        if "class_name" in losses and "config" in losses:
            return str(losses["config"].get("name", ""))
        return _of(losses.get(name), index, name)
    if isinstance(losses, (list, tuple)):
        return _of(losses[index], index, name)
    if isinstance(losses, str):
        return losses
    return str(getattr(losses, "name", getattr(losses, "__name__", "")))


def _zeros(output: Any, loss: str, rows: int) -> np.ndarray:
    """Labels of an output: class numbers for a sparse loss, else of the output's own shape."""
    shape = [size or 1 for size in output.shape[1:]]
    if loss.lower().replace("_", "").startswith("sparse"):
        return np.zeros((rows, *shape[:-1]), "int32")
    return np.zeros((rows, *shape), "float32")


NO_LIMIT = 1 << 50
OF_IMAGES = 4  # dimensions of a batch of them
PARTIAL = 7  # examples of the partial validation batch
TOTAL = re.compile(r"Total bytes used: (\d+)")


def _maker_of(workload: Workload) -> ModelMaker:
    """The maker of a workload's models, which knows the lengths of its sample."""
    spec = workload.spec
    if isinstance(spec.build, Imported):  # only the function itself tells whether it takes `hp`
        spec = dataclasses.replace(spec, build=spec.build.load())
    maker = ModelMaker.of(spec, workload.reserved)
    if workload.sample:
        maker.first.x = keras.tree.map_structure(lambda part: part[:1], workload.sample[0])
    return maker


def _preprocessed(workload: Workload, maker: ModelMaker) -> Workload:
    """The workload as its model trains on it, if that preprocesses its data.

    Examples that are what the model's inputs take already, such as those of a shape, stay so.
    """
    parts = [np.asarray(part) for part in keras.tree.flatten(workload.sample[:1])]
    if not any(part.dtype.kind in "OSU" or part.ndim >= OF_IMAGES for part in parts):
        return workload
    model = maker.raw(workload.recipe.policy)
    preprocess = preprocess_of(model)
    if preprocess is None or _are_inputs(model, workload.sample):
        return workload
    sample = arrays_of(preprocess, workload.sample)
    maker.first.x = keras.tree.map_structure(lambda part: part[:1], sample[0])
    return dataclasses.replace(workload, sample=sample)


def _first_of(inputs: Any) -> Any:
    """One example of arrays, as tensors."""
    return keras.tree.map_structure(lambda array: tf.convert_to_tensor(array[:1]), inputs)


def _are_inputs(model: keras.Model, sample: tuple[Any, ...]) -> bool:
    """Whether examples have the shapes and kinds of numbers of a model's inputs."""
    try:
        checked_labels(model, sample)
    except DataError:
        return False
    kinds = [np.asarray(part).dtype.kind for part in keras.tree.flatten(sample[0])]
    expected = [np.dtype(one.dtype).kind for one in getattr(model, "inputs", None) or ()]
    return sorted(kinds) == sorted(expected)


class ProbeSession:
    """A compiled model and its train step, traced once for every batch size."""

    def __init__(self, workload: Workload) -> None:
        gc.collect()
        self._registered = tensorflow_private.registered_gradients()
        self._around = ExitStack()
        for name, pipeline in workload.pipelines.items():
            if name not in augmentation.augmentation_names():
                augmentation.register_augmentation(name, pipeline)
        passes = workload.recipe.accumulation_steps
        # one example a pass: the sizes come later
        self.recipe = dataclasses.replace(
            workload.recipe,
            batch_size=passes,
            micro_batch_size=1 if passes > 1 else None,
        )
        self.maker = maker = _maker_of(workload)
        workload = _preprocessed(workload, maker)
        self._settle(workload)
        hp = maker.hyperparameters()
        self.model = maker.make(self.recipe, hp)
        check_known_values(maker.values, hp, lambda other: maker.raw(self.recipe.policy, other))
        state.refuse_stateful(self.model)
        self._lowest_values = unsaid_values(hp)
        is_known = steps_by_shapes(self.model)
        self._around.enter_context(policy_scope(self.recipe.policy, maker.own_policy))
        self._around.enter_context(called_in_passes(self.model, self.recipe))
        self._around.enter_context(trained_by_method(self.model, self.recipe))
        self._around.enter_context(
            augmented(self.model, augmentation.layers(self.recipe.augmentation))
        )
        if not self.model.built and workload.sample:
            self.model(_first_of(workload.sample[0]), training=False)
        sample = completed_labels(self.model, checked_labels(self.model, workload.sample))
        sample = keras.tree.lists_to_tuples(sample)  # tf.data would stack what stands in a list
        with tf.device("CPU:0"):
            self.sample = keras.tree.map_structure(tf.convert_to_tensor, sample)
        self.model.optimizer.build(self.model.trainable_variables)
        self._averages = averages(self.model, self.recipe.ema)
        if is_known:
            make_step_ready(self.model, self.specs(None))
        # Traced once, for what it will need and for running it: what Keras' train function traces
        # is the same step.
        self.step = tf.function(
            self.model.train_step,
            jit_compile=self.recipe.jit_compile,
            input_signature=[self.specs(None)],
        )
        self._train = tf.function(lambda batches: self.step(next(batches)))

    def _settle(self, workload: Workload) -> None:
        """Let passes accumulate as the loss needs, measured on the sample."""
        if self.recipe.accumulation_steps == 1:
            return
        plain = accumulation.in_one_pass(self.recipe)
        model = self.maker.make(plain, self.maker.hyperparameters())
        sample = completed_labels(model, checked_labels(model, workload.sample))
        batch = keras.utils.unpack_x_y_sample_weight(
            keras.tree.map_structure(tf.convert_to_tensor, tuple(sample))
        )
        if accumulation.coupled(model, [batch]):
            self.recipe = dataclasses.replace(self.recipe, accumulation="exact")

    def facts(self, limit_bytes: int | None) -> ModelFacts:
        """Bytes of the model before it trains."""
        weights, slots, trainable = (
            sum(map(_bytes, variables))
            for variables in (
                self.model.variables,
                [*self.model.optimizer.variables, *self._averages],
                self.model.trainable_variables,
            )
        )
        # Kernels are drawn; vectors, statistics and slots begin as constants.
        every = [(_bytes(variable), len(variable.shape) > 1) for variable in self.model.variables]
        every += [(_bytes(variable), False) for variable in self.model.optimizer.variables]
        space = MARGINS.usable(limit_bytes) if limit_bytes else NO_LIMIT
        free = device_memory.contiguous(
            space,
            every,
            device_memory.FIRST_REGION if device_memory.device() == "CPU:0" else space,
        )
        return ModelFacts(
            limit_bytes,
            device_memory.device_words(),
            weights,
            slots,
            trainable,
            free,
            self._lowest_values,
        )

    def specs(self, batch_size: int | None) -> tuple[Any, ...]:
        """Shapes and types of what one step takes, for passes of `batch_size`; `None` for any."""
        examples = None if batch_size is None else batch_size * self.recipe.examples_per_step
        return tuple(
            keras.tree.map_structure(
                lambda array: tf.TensorSpec((examples, *array.shape[1:]), array.dtype), self.sample
            )
        )

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """Endless batches of a shape unknown to the trace, through a pipeline like a training's."""

        def gather(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(lambda array: tf.gather(array, indices), self.sample)

        rows = int(keras.tree.flatten(self.sample)[0].shape[0])
        indices = tf.data.Dataset.range(rows).repeat().batch(batch_size)
        return untuned(indices.map(gather, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))

    def probe(self, batch_size: int, steps: int) -> Probe:
        """Train some steps; with gradient accumulation, one of them updates the weights."""
        return self._trained(self._train, batch_size, steps, slow_probe_is_done)

    def _trained(
        self, train: Callable[[Any], Any], batch_size: int, steps: int, is_done: IsDone
    ) -> Probe:
        """Train steps by a function that takes the next batch, fewer where `is_done` says so."""
        began, seconds, peaks = time.perf_counter(), list[float](), list[int]()
        ended, message, first_peak = "passed", "", 0
        may_end = self.recipe.steps_per_update == 1  # else some steps need more than others
        try:
            if self.recipe.steps_per_update > 1:
                # Loss scaling wraps the optimizer that accumulates.
                optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
                passes = keras_private.passes(optimizer)
                passes.assign(self.recipe.steps_per_update - 2)
            batches = iter(self.batches(batch_size * self.recipe.examples_per_step))
            while len(seconds) < steps:
                step_began = time.perf_counter()
                device_memory.reset_peak()
                train(batches)
                device_memory.wait()
                seconds.append(time.perf_counter() - step_began)
                peaks.append(device_memory.bytes_peak() or 0)
                if len(seconds) == 1 < steps and device_memory.tries_algorithms():
                    first_peak = peaks.pop()
                if waited(seconds):
                    ended, message = (
                        "out_of_memory",
                        f"a step took {seconds[-1]:.0f} s: it waited for memory to become free",
                    )
                    break
                if may_end and is_done(seconds, peaks, _limit or 0):
                    break
        except Exception as error:
            ended, message = _how(error), str(error)[-500:]
            if ended == "raised":
                raise
            peaks.append(device_memory.bytes_peak() or 0)
        return Probe(
            batch_size,
            ended,
            max(peaks, default=0),
            time.perf_counter() - began,
            tuple(seconds),
            message,
            first_peak_bytes=first_peak,
        )

    def confirm(self, batch_size: int, steps: int, validation_batch_size: int) -> Probe:
        """Train `steps` steps as `fit` does, then validate on a full and a partial batch."""
        self.model.make_train_function()
        is_done = _unless_asked(steps, confirmation_is_done)
        trained = self._trained(self.model.train_function, batch_size, steps, is_done)
        return self._validated(trained, validation_batch_size)

    def confirm_spared(
        self, batch_size: int, steps: int, validation_batch_size: int, spared_bytes: int
    ) -> Probe:
        """Train the step that is traced, then validate, while some bytes of the limit are taken."""
        try:
            with tf.device(device_memory.device()):
                taken = tf.zeros([spared_bytes], tf.uint8)
        except tf.errors.ResourceExhaustedError as error:
            return Probe(batch_size, "out_of_memory", 0, 0.0, message=str(error)[-500:])
        is_done = _unless_asked(steps, counted_confirmation_is_done)
        trained = self._trained(self._train, batch_size, steps, is_done)
        probe = self._validated(trained, validation_batch_size)
        del taken  # not before: the batches had to find room beside it
        return dataclasses.replace(probe, peak_bytes=max(0, probe.peak_bytes - spared_bytes))

    def _validated(self, trained: Probe, validation_batch_size: int) -> Probe:
        """A training's probe, once the model has validated on a full and a partial batch."""
        if trained.ended != "passed":
            return trained
        began, ended, message = time.perf_counter(), "passed", ""
        peak = trained.peak_bytes
        try:
            for size in (validation_batch_size, max(1, min(PARTIAL, validation_batch_size - 1))):
                batch = self.batches(size).take(1)
                if device_memory.tries_algorithms():
                    self.model.evaluate(batch, verbose=0)
                    device_memory.reset_peak()
                self.model.evaluate(batch, verbose=0)
                peak = max(peak, device_memory.bytes_peak() or 0)
        except Exception as error:
            ended, message = _how(error), str(error)[-500:]
            if ended == "raised":
                raise
        peak = max(peak, device_memory.bytes_peak() or 0) if ended != "passed" else peak
        seconds = trained.seconds + time.perf_counter() - began
        phase = "training" if ended == "passed" else "validation"
        return dataclasses.replace(
            trained, ended=ended, peak_bytes=peak, seconds=seconds, message=message, phase=phase
        )

    def is_compiled_by_xla(self) -> bool:
        """Whether Keras compiles the model by XLA if nothing is said."""
        return bool(self.maker.raw(self.recipe.policy).jit_compile)

    def heaviest(self, augmentations: tuple[str, ...]) -> str:
        """The augmentation pipeline with the most layers."""
        return max(augmentations, key=lambda name: len(augmentation.layers(name)))

    def moments(self) -> list[Moment]:
        """The moments of the train step that may be its peak; nothing is executed."""
        return liveness.moments(self._graph)

    def misses_some(self) -> bool:
        """Whether the train step may need what its moments do not count."""
        return liveness.misses_some(self._graph)

    def most_elements(self) -> float:
        """The elements of the train step's largest tensor for each example of the batch."""
        return liveness.most_elements(self._graph)

    @cached_property
    def _graph(self) -> Any:
        """The graph of a train step with a batch of `PRIME` examples."""
        graph = reshaped(self.step.get_concrete_function(), PRIME)
        if graph is not None:
            return graph
        return tf.function(self.model.train_step).get_concrete_function(self.specs(PRIME)).graph

    def digest(self) -> str:
        """A digest of the variables, and of the train step traced for any batch size."""
        variables = [
            (list(each.shape), str(each.dtype), each.trainable)
            for each in (*self.model.variables, *self.model.optimizer.variables)
        ]
        return f"{variables} {digest_of(self.step.get_concrete_function().graph)}"

    def compiled_bytes(self, batch_size: int) -> int:
        """Bytes of all buffers of the train step as XLA compiles it; nothing is executed."""
        folder, specs = Path(os.environ[DUMP]), self.specs(batch_size)

        # XLA compiles from shapes alone where every argument is one tensor: a whole batch of zeros
        # may not fit into the memory of the host. The name is what `xla_flags` looks for.
        @tf.function(jit_compile=True)
        def train_step(*parts: tf.Tensor) -> Any:
            return self.step(keras.tree.pack_sequence_as(specs, parts))

        try:
            text = train_step.experimental_get_compiler_ir(*keras.tree.flatten(specs))
            text(stage="optimized_hlo_serialized")
            dumped = sorted(folder.glob("*buffer-assignment.txt"), key=os.path.getmtime)
            return [int(found) for path in dumped for found in TOTAL.findall(path.read_text())][-1]
        except Exception as error:
            if is_out_of_memory(error):
                return TOO_LARGE
            raise
        finally:
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        """Forget the model."""
        self._around.close()
        del self.model
        tensorflow_private.purge_gradients(self._registered)


def _unless_asked(steps: int, is_done: IsDone) -> IsDone:
    """A rule for fewer steps, unless more than the default number are asked for."""
    return all_are_wanted if steps > MARGINS.confirmed_steps else is_done


_open: ProbeSession | None = None
_limit: int | None = None


def prepare() -> None:
    """Do nothing: calling this function imports the module, and with it TensorFlow."""


def begin(workload: Workload, limit_bytes: int | None) -> ModelFacts | Refusal:
    """Make the model of a workload in this process, instead of the one before."""
    global _open, _limit
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if _limit is None:
            _limit = device_memory.apply_limit(limit_bytes) or 0
        if _open is not None:
            _open.close()
            _open = None
        _open = ProbeSession(workload)
        return _open.facts(_limit or None)
    except Exception as error:
        return refusal(error)


def answer(method: str, *arguments: Any) -> Any:
    """What a method of the session that `begin` made returns, or its error as a `Refusal`."""
    try:
        if _open is None:
            raise RuntimeError("the worker has no session: `begin` must be called first")
        return getattr(_open, method)(*arguments)
    except Exception as error:
        return refusal(error)


def refusal(error: Exception) -> Refusal:
    """An error as a value that travels, since errors of TensorFlow and of users may not."""
    if isinstance(error, KbatchError):
        return Refusal(type(error).__name__, error.must, str(error.received), error.do)
    if is_out_of_memory(error):
        return Refusal("MemoryLimitError", "", str(error)[-500:], "")
    return Refusal("", "", f"{type(error).__name__}: {str(error)[:1500]}{_place(error)}", "")


def _place(error: Exception) -> str:
    """Where in the user's own code an error comes from; empty if it does not come from there."""
    ours = Path(__file__).parents[1]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
    ]
    own = [
        frame
        for frame in frames
        if ours not in Path(frame.filename).parents and not frame.filename.startswith("<")
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _how(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out_of_memory"
    return "suspect" if is_suspect(error) else "raised"


def _bytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
