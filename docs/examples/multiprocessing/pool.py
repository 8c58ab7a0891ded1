"""A pool of processes whose log records are shipped: ``python pool.py [fork|spawn|forkserver]``."""

import logging
import logging.config
import multiprocessing
import os
import sys

log = logging.getLogger("shop")


def configure_logging():
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "console": {"class": "logging.StreamHandler"},
                "ship": {
                    "class": "logclient.Handler",
                    "url": os.environ.get("LOG_URL", "lumberjack://127.0.0.1:5044"),
                },
            },
            "root": {"level": "INFO", "handlers": ["console", "ship"]},
        }
    )


def begin_worker(method):
    if method != "fork":  # a forked process has inherited the handler; others start from nothing
        configure_logging()


def price(number):
    log.info("order %d priced", number)
    return os.getpid()


if __name__ == "__main__":
    method = sys.argv[1] if sys.argv[1:] else "spawn"
    configure_logging()
    log.info("begin")
    pool = multiprocessing.get_context(method).Pool(3, begin_worker, [method])
    workers = set(pool.imap_unordered(price, range(1000)))
    # Not `with Pool() as pool`: the end of that block kills the workers by SIGTERM, with whatever they have
    # not delivered yet. After close() they end by themselves, and deliver.
    pool.close()
    pool.join()
    log.info("end, with %d workers", len(workers))
