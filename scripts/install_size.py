"""Print what an install of kbatch weighs: each dependency, and what it alone brings along.

Usage: python scripts/install_size.py [--extra gpu]

Run it in the environment to weigh, where kbatch is installed. Sizes are bytes on disk of what pip
recorded; compiled files that Python wrote later are left out.
"""

from __future__ import annotations

import argparse
import functools
import sys
from importlib import metadata

import pandas as pd
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kbatch.distribution import NAME


@functools.cache
def needs(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return the installed libraries that a library requires itself."""
    found = set()
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        markers = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, markers)):
            found.add(canonicalize_name(requirement.name))
    return found & installed()


@functools.cache
def installed() -> set[str]:
    """Return the names of all libraries of this environment."""
    return {canonicalize_name(each.name) for each in metadata.distributions()}


def reached(roots: set[str]) -> set[str]:
    """Return libraries and all that they require."""
    found: set[str] = set()
    ahead = set(roots)
    while ahead:
        name = ahead.pop()
        found.add(name)
        ahead |= needs(name) - found
    return found


def size_bytes(name: str) -> int:
    """Return the bytes on disk of a library's own files."""
    files = [file.locate() for file in metadata.files(name) or ()]
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extra", action="append", default=[])
    direct = needs(NAME, frozenset(parser.parse_args().extra))
    sizes = {name: size_bytes(name) for name in reached(direct)}
    rows = []
    for name in direct:
        alone = set(sizes) - reached(direct - {name})
        rows.append((name, sizes[name] / 1e6, sum(sizes[each] for each in alone) / 1e6, len(alone)))
    columns = ["library", "own MB", "MB that it alone brings", "libraries that it alone brings"]
    found = pd.DataFrame(rows, columns=columns).sort_values(columns[2], ascending=False)
    print(found.to_markdown(index=False, floatfmt=".1f"))
    print(f"{len(sizes)} libraries, {sum(sizes.values()) / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
