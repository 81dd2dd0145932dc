"""Class folders: which part and which class each picture of a folder or a zip belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbatch.errors import DataError
from kbatch.sources.photographs import Entry, natural, shown

TRAIN, VALIDATION, TEST = "train", "validation", "test"
PARTS = {
    **dict.fromkeys(("train", "training", "train_set", "training_set", "trainset"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "val_set", "validation_set"), VALIDATION),
    **dict.fromkeys(("test", "testing", "test_set", "testing_set", "testset"), TEST),
}
WHOLE = ""  # the part of data that are not split yet
HIDDEN = (".", "__MACOSX")  # beginnings of names
ByClass = dict[str, list[Entry]]


@dataclass(frozen=True)
class ClassFolders:
    """The pictures of a folder or a zip.

    Attributes:
        parts: Dictionary from part (`train`, `validation`, `test`, or empty for pictures that are
            not split yet) to a dictionary from class to its pictures.
        above: Names of the folders that lie around those.
        tops: Names of the folders in the innermost of them: classes, or parts.
        outside: How many pictures lie in no class folder.
    """

    parts: dict[str, ByClass]
    above: tuple[str, ...]
    tops: tuple[str, ...]
    outside: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return tuple(sorted(next(iter(self.parts.values()))))

    @property
    def pictures(self) -> int:
        """The number of pictures."""
        return sum(len(entries) for part in self.parts.values() for entries in part.values())


def class_folders(entries: Sequence[Entry], path: str) -> ClassFolders:
    """Sort pictures by part and class. Hidden files are left out.

    Args:
        entries: All image files of a folder or a zip.
        path: String, its name, for errors.

    Raises:
        DataError: If there are fewer than two classes, or the parts have other ones.
    """
    visible = sorted((entry for entry in entries if _is_visible(entry)), key=natural)
    above = _wrapper(visible)
    inside = [entry for entry in visible if len(entry.parts) > len(above) + 1]
    tops = {entry.parts[len(above)] for entry in inside}
    named = {top: PARTS.get(top.lower(), WHOLE) for top in sorted(tops)}
    if TRAIN in named.values() and WHOLE not in named.values():
        parts = _split(inside, len(above), named, path)
    else:
        _check_classes(inside, len(above), named, path)
        parts = {WHOLE: _by_class(inside, len(above))}
    sorted_in = sum(len(found) for by_class in parts.values() for found in by_class.values())
    folders = ClassFolders(parts, above, tuple(named), len(visible) - sorted_in)
    _check(folders, path)
    return folders


def words_of(classes: Sequence[str]) -> str:
    """Return the names of classes in words, of many classes the first ones.

    Example:
    >>> words_of(["a", "b"]), words_of(list("abcdefghij"))
    ('a, b', 'a, b, c, d, e, f, …')
    """
    most = 6
    return ", ".join([*map(shown, classes[:most]), *(["…"] if len(classes) > most else [])])


def _is_visible(entry: Entry) -> bool:
    return not any(part.startswith(HIDDEN) for part in entry.parts)


def _wrapper(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The folders that hold nothing but one other, such as the one that a zip begins with."""
    above: tuple[str, ...] = ()
    while True:
        inside = [entry for entry in entries if len(entry.parts) > len(above) + 1]
        tops = {entry.parts[len(above)] for entry in inside}
        is_class = any(len(entry.parts) == len(above) + 2 for entry in inside)
        if len(tops) != 1 or is_class or min(tops).lower() in PARTS:
            return above
        above = (*above, *tops)


def _by_class(entries: Sequence[Entry], depth: int) -> ByClass:
    """The pictures by the name of the folder at a depth."""
    by_class: ByClass = {}
    for entry in entries:
        if len(entry.parts) > depth + 1:
            by_class.setdefault(entry.parts[depth], []).append(entry)
    return by_class


def _check_classes(entries: Sequence[Entry], depth: int, named: dict[str, str], path: str) -> None:
    """Refuse folders that look like parts of the data: each would be trained on as a class.

    A folder looks like a part if it bears a part's name, or the same two folders as another one,
    and holds no pictures itself.
    """
    own = {entry.parts[depth] for entry in entries if len(entry.parts) == depth + 2}
    within: dict[str, set[str]] = {top: set() for top in named if top not in own}
    for entry in entries:
        if entry.parts[depth] in within:
            within[entry.parts[depth]].add(entry.parts[depth + 1])
    alike = [top for top, inner in within.items() if _has_twin(inner, top, within)]
    parts = [top for top in within if named[top] != WHOLE and len(within[top]) > 1]
    if parts or alike:
        raise DataError(
            f"{path} must hold one folder of pictures per class, or {TRAIN}, {VALIDATION} and "
            f"{TEST} with such folders in each and nothing else",
            f"{words_of(sorted(named))}; {words_of(sorted({*parts, *alike}))} hold folders of "
            "classes",
            f"Rename parts to {TRAIN}, {VALIDATION} and {TEST} and take other folders out; or, if "
            "these are classes, lay their pictures right into them",
        )


def _has_twin(inner: set[str], top: str, within: dict[str, set[str]]) -> bool:
    """Whether another folder holds the same folders, two or more."""
    others = [found for name, found in within.items() if name != top]
    return len(inner) > 1 and inner in others


def _split(
    entries: Sequence[Entry], depth: int, named: dict[str, str], path: str
) -> dict[str, ByClass]:
    """The pictures by part and class, of folders such as `train` and `val`."""
    if len(set(named.values())) < len(named):
        raise DataError(
            f"{path} must hold one folder of each part: train, validation and test",
            ", ".join(named),
            "Leave one of the same part out",
        )
    return {
        part: _by_class([entry for entry in entries if entry.parts[depth] == top], depth + 1)
        for top, part in sorted(named.items(), key=lambda each: list(PARTS.values()).index(each[1]))
    }


def _check(folders: ClassFolders, path: str) -> None:
    """Refuse fewer than two classes, and parts with classes that are not trained on."""
    if len(folders.classes) < 2:
        found = words_of(folders.classes) or "no folder of pictures"
        one = f"one folder of pictures, {found}" if folders.classes else found
        within = f", in its folder {TRAIN}" if TRAIN in folders.parts else ""
        raise DataError(
            f"{path} must hold at least two folders of pictures, one per class{within}",
            one,
            "Pass a folder that holds one folder of pictures per class",
        )
    for part, by_class in folders.parts.items():
        unknown = sorted(by_class.keys() - set(folders.classes))
        if unknown or not by_class:
            raise DataError(
                f"The part {part} of {path} must hold classes that the part {TRAIN} has",
                words_of(unknown) or "no class folder with pictures",
                "Add their pictures there, or take them out here",
            )
