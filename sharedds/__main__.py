"""``python -m sharedds``: the command line."""

import sys

from sharedds.cli import main

if __name__ == "__main__":
    sys.exit(main())
