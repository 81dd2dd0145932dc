"""Check a real GPU, and write one JSON to send with a bug report.

Usage: python scripts/gpu_check.py [--groups E,M] [--only L1,O1] [--budget 600] [--out FILE]
[--list]

Each check runs in a process of its own, and its row is in the file as soon as it is known.
`FAKE_GPU=1` rehearses the checks on a CPU. The checks themselves are in `kbatch/gpu_checks`, and
`python -m kbatch.gpu_checks` runs them without a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kbatch.gpu_checks import command

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:], ROOT / "tests" / "fake_gpu"))
