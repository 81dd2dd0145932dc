"""The export of a training: code that trains its recipe on its data without kbatch."""

from __future__ import annotations

import itertools
import json
import keyword
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecordError
from kbatch.recipe_words import CONSTANT, whole_number
from kbatch.records import files, project
from kbatch.records.store import Record
from kbatch.results.loading import folder_of, load_goal, root_of
from kbatch.results.report import RUN_FILE
from kbatch.results.words import own_values, score_text
from kbatch.script.parts import Definition, call, comment
from kbatch.script.script import BUILD, DATA, Places, script

MODELS = {"cnn": "cnn", "small-resnet": "small_resnet"}  # functions of kbatch.models.case_study
CASE_STUDY = ["kbatch", "cats-vs-dogs"]
PICTURES = "kbatch.script.fit"
MOST = 1000  # pictures of a class
SEEDS = 2**32  # that Keras takes


def code_of(source: Any, record: Record) -> str:
    """Return code that trains the recipe of a training without kbatch, as far as it was trained."""
    facts = project.load_facts(folder_of(source)) or {}
    run = _run(root_of(source))
    model, data = _model(facts, run, record), _data(facts, run)
    return script(
        record.recipe,
        Places(
            title=_title(record),
            notes=_notes(source, record, facts),
            build=model.build,
            data=data.data,
            definitions=(*model.definitions, *data.definitions),
            **_of_search(facts),
            epochs=_epochs(record, facts),
            seed=record.seed % SEEDS,
        ),
    )


def _title(record: Record) -> str:
    whose = "the baseline's recipe" if record.baseline else f"the recipe of trial {record.trial}"
    return f"Train {whose}"


def _notes(source: Any, record: Record, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences on what was measured, and on what is not as in the search."""
    outcome, goal = record.outcome, load_goal(source)
    held = "nothing" if outcome.value is None else f"{goal.metric} {outcome.value:.4g}"
    last = f" ({outcome.curve[-1][1]:.4g} after the last update)" if outcome.curve else ""
    notes = [
        f"In the search in {root_of(source)} it trained {outcome.updates} updates in "
        f"{outcome.train_seconds:.4g} training seconds on {record.device or 'its device'}. It held "
        f"{held}{last}, and scored {score_text(record.score)} per second."
    ]
    if record.recipe.schedule != "constant" or record.recipe.batch_schedule != CONSTANT:
        notes.append(
            "Its schedule followed the training seconds there, and follows the updates here."
        )
    if record.seed != record.seed % SEEDS:
        notes.append(f"The seed is another one: the search had {record.seed}.")
    if facts.get("class_weight") and not _class_weight(facts):
        notes.append(f"Left out: class_weight={facts['class_weight']}.")
    names = _callbacks(facts)
    if names:
        notes.append(f"The callbacks of the search are left out: {names}.")
    return tuple(notes)


def _callbacks(facts: Mapping[str, Any]) -> str:
    """The names of the search's callbacks; empty without any."""
    known = facts.get("callbacks")
    listed = known if isinstance(known, list) else []
    return ", ".join(str(each["name"]) for each in listed if isinstance(each, dict))


def _epochs(record: Record, facts: Mapping[str, Any]) -> str:
    """The passes over the data that a training took."""
    examples = facts.get("data", {}).get("training", {}).get("examples")
    if not examples or not record.outcome.examples:
        return Places.epochs
    return repr(record.outcome.examples / examples)


def _of_search(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the search had besides model, data and recipe, where the project knows it."""
    given = _compiled(facts)
    todo, arguments = [*given.pop("todo", Places.todo)], []
    names = _callbacks(facts)
    if names:
        todo.append(f"TODO: pass callbacks=, as the search had them: {names}.")
    weights = _class_weight(facts)
    if weights:
        arguments.append(f"class_weight={weights}")
    return {**given, "todo": tuple(todo), "arguments": tuple(arguments)}


def _compiled(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Loss and metrics of a model that is not compiled, where the project knows them by name."""
    said = facts.get("signature")
    if not isinstance(said, dict):
        return {}
    if "optimizer" in said:
        return {"todo": ()}
    loss, metrics = said.get("loss"), said.get("metrics") or []
    listed = isinstance(metrics, list)
    # what is no plain name is described with a checksum behind a space
    known = [loss, *metrics] if listed else [None]
    if all(isinstance(name, str) and " " not in name for name in known):
        return {"compiled": {"loss": _quoted(loss), "metrics": _listed(metrics)}, "todo": ()}
    words = f"the loss and the metrics of the search: {loss}, {metrics}"
    stop = call("raise NotImplementedError", [_quoted(f"Pass {words}, and leave out this line.")])
    return {"todo": (f"TODO: pass {words}.",), "stop": (stop,)}


def _class_weight(facts: Mapping[str, Any]) -> str:
    """The weights of classes, as an expression; empty if they are not known."""
    weights = facts.get("class_weight")
    if not isinstance(weights, dict):
        return ""
    try:
        numbers = {int(name): float(weight) for name, weight in weights.items()}
    except (TypeError, ValueError):
        return ""
    return repr(numbers)


def _model(facts: Mapping[str, Any], run: Mapping[str, Any], record: Record) -> Places:
    """The function that builds the model."""
    name, size = str(facts.get("model", "")), _image_size(facts)
    values = own_values(record)
    if name in MODELS and size and _command(run)[:2] == CASE_STUDY:
        copied = Definition("kbatch.models.case_study", MODELS[name])
        built = _function("build_model", "Return a new model.", f"return {MODELS[name]}({size})")
        return Places(build=built, definitions=(copied,))
    module, _, function = name.partition(":")
    words = [*module.split("."), function]
    if all(word.isidentifier() and not keyword.iskeyword(word) for word in words):
        built = _call_of(module, function, values)
        return Places(build=_function("build_model", "Return a new model.", built))
    if not values:
        return Places()
    return Places(build=_told(BUILD, f"The trial's own hyperparameters: {_dict(values)}."))


def _call_of(module: str, function: str, values: Mapping[str, Any]) -> str:
    """The statements that call the user's own function."""
    imported = f"from {module} import {function}"
    if not values:
        # where it takes hyperparameters, they have their defaults
        return (
            f"import inspect\n\n    {imported}\n\n"
            f"    for each in inspect.signature({function}).parameters.values():\n"
            '        if each.name == "hp" or each.default is each.empty:\n'
            "            import keras_tuner\n\n"
            f"            return {function}(keras_tuner.HyperParameters())\n"
            f"    return {function}()"
        )
    return (
        f"import keras_tuner\n    {imported}\n\n"
        "    hp = keras_tuner.HyperParameters()\n"
        f"    hp.values = {_dict(values)}\n"
        f"    return {function}(hp)"
    )


def _data(facts: Mapping[str, Any], run: Mapping[str, Any]) -> Places:
    """The function that loads the data."""
    command, size = _command(run), _image_size(facts)
    pairs = itertools.pairwise(command)
    flags = {flag: value for flag, value in pairs if flag.startswith("--")}
    source, known = flags.get("--data", ""), run.get("data")
    words = "Return the pictures to train on and those to validate on, each as (x, y)."
    split = Definition(PICTURES, "split")
    if command[:2] != CASE_STUDY or not size or source in ("", "tfds"):
        return Places(data=_told(DATA, f"The search had: {known}.") if known else DATA)
    if source == "drawn":
        seed = plain_text.whole(flags.get("--seed", "0"))
        drawn = Definition("kbatch.data.drawn", "drawn_pets")
        loaded = f"return split(drawn_pets({MOST}, {size}, seed={seed}))"
        return Places(data=_function("load_data", words, loaded), definitions=(drawn, split))
    read = Definition(PICTURES, "photographs")
    loaded = f"return split(photographs({_quoted(source)}, {size}, {MOST}))"
    return Places(data=_function("load_data", words, loaded), definitions=(read, split))


def _function(name: str, words: str, statement: str) -> str:
    return f'def {name}():\n    """{words}"""\n    {statement}'


def _told(function: str, words: str) -> str:
    """A function that is still to be written, with a comment before its last statement."""
    told = textwrap.indent(comment(words), "    ")
    return function.replace("    raise", f"{told}\n    raise", 1)


def _dict(values: Mapping[str, Any]) -> str:
    """Values by name, as a formatter writes them."""
    pairs = [
        f"{_quoted(name)}: {_quoted(value) if isinstance(value, str) else repr(value)}"
        for name, value in values.items()
    ]
    return "{" + ", ".join(pairs) + "}"


def _quoted(text: Any) -> str:
    """A text as a formatter quotes it."""
    return json.dumps(str(text), ensure_ascii=False)


def _listed(names: list[str]) -> str:
    return f"[{', '.join(map(_quoted, names))}]"


def _command(run: Mapping[str, Any]) -> list[str]:
    """The words of the command that searched; none if they are not known."""
    try:
        return shlex.split(str(run.get("command", "")))
    except ValueError:  # a quotation without an end
        return []


def _image_size(facts: Mapping[str, Any]) -> int | None:
    """The height and width of pictures, a number: it goes into code as it is."""
    return whole_number(facts.get("image_size"))


def _run(root: Path) -> dict[str, Any]:
    """The driver's notes on its run; none if they cannot be read."""
    try:
        notes = json.loads(files.read(root / RUN_FILE) or b"{}")
    except (RecordError, ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}
