"""`python -m herma` is the same as the command `herma`."""

import sys

from herma.cli import main

if __name__ == "__main__":
    sys.exit(main())
