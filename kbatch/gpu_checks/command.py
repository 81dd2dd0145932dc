"""The command that checks a GPU: its options, its lines and its exit code."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from kbatch.errors import KbatchError, SearchError
from kbatch.gpu_checks import sight
from kbatch.gpu_checks.catalogue import CHECKS
from kbatch.gpu_checks.check import Check, Row
from kbatch.gpu_checks.report import Report
from kbatch.gpu_checks.runner import AT_ONCE, Runner, RunOptions
from kbatch.gpu_checks.scale import REAL, is_rehearsal
from kbatch.runtime import nvidia, signals

OUT = "gpu_check.json"
TEXT_CHARACTERS = 160  # of a text on the screen; the file has all of it
FAILED, REFUSED = 1, 2


def main(
    given: Sequence[str], fake_folder: Path | None = None, checks: Sequence[Check] = CHECKS
) -> int:
    """Run the checks that the options ask for, and return the exit code."""
    options = _parser().parse_args(given)
    try:
        chosen = choose(checks, _split(options.groups), _split(options.only))
        if options.list:
            with contextlib.suppress(BrokenPipeError):  # `--list | head`
                print("\n".join(f"{each.name:<26} {each.criterion}" for each in chosen), flush=True)
            return 0
        sight.wear_fake(fake_folder)
        with signals.stopping():
            report = Report(options.out, sight.gpus())
            run(chosen, report, options.budget)
    except KbatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt as error:
        print(f"\nStopped; the rows so far are in {options.out}.", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))
    print(report.summary())
    return FAILED if report.failed else 0


def run(checks: Sequence[Check], report: Report, budget_seconds: float = math.inf) -> None:
    """Run checks on this machine's GPU, and print a line of each."""

    def shown(row: Row, count: int) -> None:
        print(line(row, len(report.rows), count), flush=True)

    options = RunOptions(is_rehearsal(), budget_seconds, _at_once(), shown)
    Runner(options, report).run(checks)


def line(row: Row, number: int, count: int) -> str:
    """A row as a line of text, with how many of all rows there are."""
    text = " ".join(row.text.split())
    if len(text) > TEXT_CHARACTERS:
        text = f"{text[:TEXT_CHARACTERS]} …"
    done = f"[{number:>{len(str(count))}}/{count}]"
    return f"{done} {row.word:<4} {row.check:<26} {row.seconds:6.1f} s  {text}".rstrip()


def choose(checks: Sequence[Check], groups: Sequence[str], only: Sequence[str]) -> list[Check]:
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


def _at_once() -> int:
    """How many checks share the GPU: one on the fake, and where memory is short."""
    memory = None if is_rehearsal() else nvidia.memory_bytes()
    # each process takes its limit, and about a GB beside it for CUDA and its libraries
    need = AT_ONCE * (REAL.limit_bytes + 10**9)
    return AT_ONCE if memory is not None and memory[1] > need else 1


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description=f"Check a GPU: {len(CHECKS)} questions, each in a process of its own.",
        epilog="FAKE_GPU=1 rehearses them on a CPU. The exit code is 1 if a check failed.",
    )
    parser.add_argument("--groups", default="", help="letters of groups, such as E,M,L")
    parser.add_argument("--only", default="", help="names of checks, such as L1,O1.matmul")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="FILE", help=OUT)
    parser.add_argument("--list", action="store_true", help="show the checks and leave")
    return parser
