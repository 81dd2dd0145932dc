"""The command `python -m kbatch`, the same as `kbatch`."""

from __future__ import annotations

from kbatch.runtime import signals, users_code


def main() -> None:
    """Run the command line; a Ctrl-C during its imports ends it without a traceback."""
    signals.open_missing()
    users_code.leave_path()
    with signals.at_once():
        from kbatch.cli.app import app

        app(prog_name="kbatch")


if __name__ == "__main__":
    main()
