"""Check a real GPU, and write one JSON to send with a bug report.

Usage: python scripts/gpu_check.py [--groups E,M] [--only L1,O1] [--budget 600] [--out FILE]
[--list]

Each check runs in a process of its own, and its row is in the file as soon as it is known.
`FAKE_GPU=1` rehearses the checks on a CPU. Nine are those of `kbatch doctor --gpu`; the others are
tests in `tests/gpu`, so a checkout, or the sdist, and pytest are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kbatch.cli import gpu_check
from kbatch.cli.quick_checks import QUICK
from kbatch.errors import KbatchError, SearchError
from kbatch.runtime import signals

TESTS = Path(__file__).resolve().parents[1] / "tests"
OUT = "gpu_check.json"
GROUPS = "EMLODTFBXRS"  # in the order in which they run
FAILED, REFUSED = 1, 2


def main(given: Sequence[str], checks: Sequence[gpu_check.GpuCheck] | None = None) -> int:
    """Run the checks that the options ask for, and return the exit code."""
    options = parser().parse_args(given)
    try:
        chosen = choose(checks or catalogue(), split(options.groups), split(options.only))
        if options.list:
            with contextlib.suppress(BrokenPipeError):  # `--list | head`
                print("\n".join(f"{each.name:<26} {each.criterion}" for each in chosen), flush=True)
            return 0
        wear_fake()
        with signals.stopping():
            report = gpu_check.GpuReport(options.out, gpu_check.gpus())
            gpu_check.run(chosen, report, options.budget)
    except KbatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt as error:
        print(f"\nStopped; the rows so far are in {options.out}.", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))
    print(report.summary())
    return FAILED if report.failed else 0


def catalogue() -> list[gpu_check.GpuCheck]:
    """Return all checks; the quick ones first, so that a small budget answers many questions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "catalogue.json"
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", str(TESTS / "gpu")],
            env={**os.environ, "GPU_CHECK_CATALOGUE": str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode != 0 or not file.is_file():
            said = (process.stdout + process.stderr)[-1000:].strip()
            raise KbatchError("pytest must collect tests/gpu", said, "Install pytest")
        fields = json.loads(file.read_text(encoding="utf-8"))
    checks = [gpu_check.GpuCheck(**{**each, "command": tuple(each["command"])}) for each in fields]
    return [*QUICK, *sorted(checks, key=lambda check: GROUPS.index(check.group))]


def choose(
    checks: Sequence[gpu_check.GpuCheck], groups: Sequence[str], only: Sequence[str]
) -> list[gpu_check.GpuCheck]:
    """Return the checks of some groups or of some names; all if neither is given."""
    known = sorted({check.group for check in checks})
    for group in groups:
        if group not in known:
            raise SearchError(f"`--groups` must be among {', '.join(known)}", group, "Correct it")
    for name in only:
        if not any(check.is_meant_by(name) for check in checks):
            raise SearchError("`--only` must name checks", name, "See them with --list")
    return [
        check
        for check in checks
        if (not groups or check.group in groups)
        and (not only or any(check.is_meant_by(name) for name in only))
    ]


def wear_fake() -> None:
    """Put the fake GPU on the `PYTHONPATH` of new processes, if the environment asks for it."""
    if gpu_check.is_rehearsal():
        before = os.environ.get("PYTHONPATH", "")
        folders = filter(None, (str(TESTS / "fake_gpu"), before))
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def split(text: str) -> list[str]:
    """Return the words between the commas of a text."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description="Check a GPU: questions, each in a process of its own.",
        epilog="FAKE_GPU=1 rehearses them on a CPU. The exit code is 1 if a check failed.",
    )
    parser.add_argument("--groups", default="", help="letters of groups, such as E,M,L")
    parser.add_argument("--only", default="", help="names of checks, such as L1,O1.matmul")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="FILE", help=OUT)
    parser.add_argument("--list", action="store_true", help="show the checks and leave")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
