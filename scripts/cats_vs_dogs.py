"""The case study's driver: the same as `kbatch cats-vs-dogs`, for those who run scripts.

Usage: python scripts/cats_vs_dogs.py --help
"""

import sys

from kbatch.cli.app import app

if __name__ == "__main__":
    app(["cats-vs-dogs", *sys.argv[1:]], prog_name="cats_vs_dogs.py")
