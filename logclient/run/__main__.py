"""``python -m logclient.run COMMAND`` is ``logclient run COMMAND``."""

import sys

from logclient.run.command import execute

if __name__ == "__main__":
    sys.exit(execute(sys.argv[1:]))
