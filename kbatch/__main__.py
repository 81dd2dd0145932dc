"""`python -m kbatch`: the same as the command `kbatch`."""

from kbatch.cli import app

if __name__ == "__main__":
    app(prog_name="kbatch")
