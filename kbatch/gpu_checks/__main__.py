"""The command `python -m kbatch.gpu_checks`."""

from __future__ import annotations

import sys

from kbatch.gpu_checks import command

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
