"""`python -m benchmarks.engine ...` is `herma bench engine ...`."""

import sys

from herma.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "engine", *sys.argv[1:]]))
