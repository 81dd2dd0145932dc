"""The command `python -m kbatch`, the same as `kbatch`."""

from __future__ import annotations

from kbatch.runtime import ctrl_c, streams, users_folder


def main() -> None:
    """Run the command line; a Ctrl-C during its imports ends it without a traceback."""
    streams.open_missing()
    users_folder.leave_path()
    with ctrl_c.at_once():
        from kbatch.cli.app import app

        app(prog_name="kbatch")


if __name__ == "__main__":
    main()
