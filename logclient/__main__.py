"""The program ``logclient``, which is also ``python -m logclient``."""

import os
import signal
import sys


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


def run() -> int:
    """Run the command of this process, and return its exit code.

    Until its modules are imported, and after its work, SIGINT and SIGTERM end the process at once. A standard
    stream that is closed becomes the null device, or a socket would get its number, and the output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    from logclient.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
