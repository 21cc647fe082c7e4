"""`python -m safepoint` is the `safepoint` command."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
