"""A WSGI application whose log records are shipped. Run it under uwsgi::

LOG_URL=lumberjack://127.0.0.1:5044 uwsgi --ini uwsgi.ini
"""

import logging
import logging.config
import os

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

log = logging.getLogger("shop")
log.info("application loaded")


def application(environ, start_response):
    number = environ["PATH_INFO"].rpartition("/")[2]
    log.info("order %s received", number)
    log.info("order %s priced", number)
    log.info("order %s answered", number)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [f'{{"order": "{number}", "worker": {os.getpid()}}}'.encode()]
