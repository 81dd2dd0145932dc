"""Trainings: makes the cells of a study, each at most once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from rich.console import Console

from kbatch import outcome as outcomes
from kbatch.data.arrays import checksum
from kbatch.data.examples import Examples, Part
from kbatch.memory._find import find_max_batch
from kbatch.models.case_study import MODELS
from kbatch.outcome import SCORED, Outcome
from kbatch.recipe import Recipe
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.worker import Death, Worker
from kbatch.studies.cell import CROPPED, STEPS, TRAIN, Cell, Sample, Setting
from kbatch.training.one_recipe import train


def resnet50(image_size: int) -> keras.Model:
    """Return ResNet50 with random weights and one output for two classes."""
    inputs = keras.Input((image_size, image_size, 3))
    body = keras.applications.ResNet50(
        include_top=False, weights=None, pooling="avg", input_shape=(image_size, image_size, 3)
    )
    features = body(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(features)
    return keras.Model(inputs, outputs, name="resnet50")


NETWORKS: dict[str, Callable[[int], keras.Model]] = {**MODELS, "resnet50": resnet50}


def network(name: str, image_size: int) -> keras.Model:
    """Return the network of a name."""
    return NETWORKS[name](image_size)


CHANCE = 0.5
LARGER = 1.25  # of the published augmentation: pictures of 200 px are resized to 250
EVALUATED = 256  # examples per batch of an evaluation
# Of the data set on a CPU: to train on, to evaluate on, and what is prepared ahead. A training of
# ResNet50 on 1,200 pictures of 48 px (14 MB with the others) takes 40 MB more than the finder's.
DATA_COPIES = 4
TIMEOUT_SECONDS = 4 * 3600.0  # of a training in a process of its own


class Trainings:
    """Makes trainings of a study and keeps their records."""

    def __init__(self, project: Project, setting: Setting, pictures: Examples) -> None:
        self._project, self._setting = project, setting
        self._pictures = first_of_each(pictures, setting.per_class)

    @property
    def sample(self) -> Sample:
        """The numbers of pictures that are used."""
        return Sample.of(self._pictures)

    def facts(self) -> dict[str, dict[str, int]]:
        """Return number and checksum of the pictures that are used, to tell them from others."""
        tested = self._pictures.test or self._pictures.validation
        parts = {
            "training": self._pictures.train,
            "validation": self._pictures.validation,
            "test": tested,
        }
        return {
            name: {"examples": len(part[1]), "checksum": checksum(part)}
            for name, part in parts.items()
        }

    def known(self, cell: Cell) -> Record | None:
        """Return the record of a cell that was trained before, or `None`."""
        return self._project.trainings.known(cell.job())

    def record(self, cell: Cell) -> Record:
        """Return the record of a cell, which is trained if the project has none."""
        job, trainings = cell.job(), self._project.trainings
        record = trainings.known(job)
        if record is not None:
            return record
        record = trainings.crashed(job)
        if record is None:
            with trainings.training(job):
                outcome, test = self._trained(cell)
            record = job.record(outcome, _score(outcome), test)
        return trainings.end(record)

    def _trained(self, cell: Cell) -> tuple[Outcome, dict[str, float]]:
        if cell.recipe.batch_size > len(self._pictures.train[0]):
            words = f"{len(self._pictures.train[0])} examples"
            return Outcome("error", message=f"the batch is larger than the data, {words}"), {}
        if not cell.isolated:
            return trained(cell, self._setting.image_size, self._pictures)
        return self._trained_apart(cell)

    def _data_bytes(self) -> int:
        parts = (self._pictures.train, self._pictures.validation, self._pictures.test)
        return sum(images.nbytes for images, _ in filter(None, parts))

    def _trained_apart(self, cell: Cell) -> tuple[Outcome, dict[str, float]]:
        """Train a cell in a process of its own, with its environment."""
        # The limit stands for a card, and a card does not hold the data set. A CPU does, so there
        # the data come on top. On a GPU these variables have no effect.
        beside = DATA_COPIES * self._data_bytes()
        allowed = None if cell.memory_limit is None else cell.memory_limit + beside
        environment = {**device_memory.limit_environment(allowed), **cell.environment}
        with Worker(environment) as worker:
            answer = worker.call(
                "kbatch.studies.trainings:trained_within",
                cell,
                self._setting.image_size,
                self._pictures,
                timeout_seconds=TIMEOUT_SECONDS,
            )
        if isinstance(answer, Death):
            return Outcome("crashed", message=str(answer)), {}
        outcome, test = answer
        return outcome, test


def trained_within(
    cell: Cell, image_size: int, pictures: Examples
) -> tuple[Outcome, dict[str, float]]:
    """Train a cell in this new process, within its memory limit."""
    device_memory.apply_limit(cell.memory_limit)
    return trained(cell, image_size, pictures)


def trained(cell: Cell, image_size: int, pictures: Examples) -> tuple[Outcome, dict[str, float]]:
    """Train a cell, and return its outcome and its metrics on test and training data."""
    registered = tensorflow_private.registered_gradients()
    try:
        return _trained(cell, image_size, pictures)
    finally:
        tensorflow_private.purge_gradients(registered)  # it would hold the models of all cells


def _trained(cell: Cell, image_size: int, pictures: Examples) -> tuple[Outcome, dict[str, float]]:
    data = pictures.train
    if cell.data == CROPPED:
        data = with_crops(*data, seed=cell.seed)
    model, outcome = train(
        cell.recipe,
        functools.partial(network, cell.model, image_size),
        *data,
        pictures.validation,
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seed=cell.seed,
        chance=CHANCE,
        **_length(cell),
    )
    if outcome.ended not in SCORED or outcome.value is None:
        return outcome, {}
    on_train = _metrics(model, pictures.train)
    test = {f"{TRAIN}{name}": value for name, value in on_train.items()}
    return outcome, {**test, **_metrics(model, pictures.test or pictures.validation)}


def _length(cell: Cell) -> dict[str, Any]:
    whole = cell.length.unit != "seconds"
    return {cell.length.unit: int(cell.length.amount) if whole else cell.length.amount}


def _metrics(model: Any, data: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    found = model.evaluate(*data, batch_size=EVALUATED, verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}


def _score(outcome: Outcome) -> float:
    """The score of an outcome over its own seconds."""
    if outcome.ended not in SCORED or not outcome.train_seconds:
        return 0.0
    return outcomes.score(outcome.curve, outcome.train_seconds, CHANCE)


def first_of_each(pictures: Examples, per_class: int) -> Examples:
    """Return the first pictures of each class: so many to train, a third of that elsewhere."""
    third = max(per_class // 3, 1)
    return dataclasses.replace(
        pictures,
        train=_first(pictures.train, per_class),
        validation=_first(pictures.validation, third),
        test=None if pictures.test is None else _first(pictures.test, third),
    )


def _first(part: Part, per_class: int) -> Part:
    """The first examples of each class."""
    images, labels = part
    kept = np.concatenate(
        [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    )
    return images[kept], labels[kept]


def with_crops(
    images: np.ndarray, labels: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures and, behind them, a random crop of each.

    Each is resized to 1.25 times its height and width, of which a part of the old size is cut, as
    in the published augmentation: 200 px, resized to 250, random crop of 200.
    """
    from PIL import Image

    random = np.random.default_rng(seed)
    size = images.shape[1]
    larger = round(size * LARGER)
    crops = np.empty_like(images)
    for index, image in enumerate(images):
        top, left = random.integers(0, larger - size + 1, 2)
        resized = np.asarray(Image.fromarray(image).resize((larger, larger)))
        crops[index] = resized[top : top + size, left : left + size]
    return np.concatenate([images, crops]), np.concatenate([labels, labels])


FACT = "largest"  # the name of the batches among the project's facts


def largest_batches(
    rungs: Mapping[str, Recipe],
    model: str,
    setting: Setting,
    examples: int,
    project: Project,
    console: Console,
) -> dict[str, int]:
    """Return the largest micro-batch of each rung; the project keeps each once it is found."""
    size, found = setting.image_size, _known(project)
    for name, recipe in rungs.items():
        if name in found:
            continue
        with console.status(f"Finding the largest batch: {name} …"):
            answer = find_max_batch(
                functools.partial(network, model, size),
                (size, size, 3),
                recipe=recipe,
                memory_limit=setting.memory_limit,
                ceiling=ceiling_of(examples),
                loss="binary_crossentropy",
                metrics=["accuracy"],
            )
        found[name] = answer.batch_size
        project.agree({f"{FACT} {name}": answer.batch_size})  # each, so that Ctrl-C loses none
        console.print(f"{name}: {answer}", highlight=False, soft_wrap=True)
    return found


def ceiling_of(examples: int) -> int:
    """Return the most pictures of one pass, so that all accumulated passes have enough."""
    return max(examples // STEPS, 1)


def _known(project: Project) -> dict[str, int]:
    """The sizes found before."""
    return {
        name.removeprefix(f"{FACT} "): int(size)
        for name, size in project.facts().items()
        if name.startswith(f"{FACT} ")
    }
