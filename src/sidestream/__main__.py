"""`python -m sidestream`: the same as the `sidestream` command."""

import sys

from sidestream.diagnose.command import main

if __name__ == "__main__":
    sys.exit(main())
