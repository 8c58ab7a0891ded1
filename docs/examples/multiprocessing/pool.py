"""A pool of processes whose log records are shipped: ``python pool.py [fork|spawn|forkserver]``."""

import logging
import logging.config
import multiprocessing
import os
import sys

import logclient

log = logging.getLogger("shop")


def configure_logging():
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "ship": {
                    "class": "logclient.Handler",
                    "url": os.environ.get("LOG_URL", "lumberjack://127.0.0.1:5044"),
                },
            },
            "root": {"level": "INFO", "handlers": ["ship"]},
        }
    )


def begin_worker(method):
    if method != "fork":  # a forked process has inherited the handler; others start from nothing
        configure_logging()
    # Pool.terminate(), which the end of a `with` block calls, kills the workers by SIGTERM. Its default
    # action is the end of the process on the spot; with this the records are delivered first.
    logclient.flush_on_sigterm()


def price(number):
    log.info("order %d priced", number)
    return os.getpid()


if __name__ == "__main__":
    method = sys.argv[1] if sys.argv[1:] else "spawn"
    configure_logging()
    log.info("begin")
    with multiprocessing.get_context(method).Pool(3, begin_worker, [method]) as pool:
        workers = set(pool.imap_unordered(price, range(1000)))
    log.info("end, with %d workers", len(workers))
