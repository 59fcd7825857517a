"""`python -m benchmarks.gateway`: the same as `herma bench gateway`."""

import sys

from herma.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "gateway", *sys.argv[1:]]))
