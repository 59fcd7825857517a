"""`python -m herma` is the same as the command `herma`.

Python takes packages of the working directory before all others here. A `config.py` or `gateway.py`
of that directory must not run in place of ours, so the directory is taken off the path first.
"""

import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from herma.start import main

if __name__ == "__main__":
    sys.exit(main())
