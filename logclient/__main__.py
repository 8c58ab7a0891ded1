"""``python -m logclient``."""

import sys

from logclient.cli import main

if __name__ == "__main__":
    sys.exit(main())
