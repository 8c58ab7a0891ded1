"""Puts a class of loggers and a handler on the root into every Python process of a guest's suite.

By the environment variable GUEST: a URL for those of logclient, ``plain`` for those that any library might
have, and nothing for a suite as it is.
"""

import logging
import os

if (where := os.environ.get("GUEST")) == "plain":

    class Logger(logging.Logger):
        pass

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.getMessage()

    logging.setLoggerClass(Logger)
    logging.getLogger().addHandler(Handler())
elif where:
    import logclient

    logging.setLoggerClass(logclient.Logger)
    logging.getLogger().addHandler(logclient.Handler(where))
