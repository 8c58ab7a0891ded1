"""Celery tasks whose log records are shipped. Run a worker with the prefork pool::

LOG_URL=lumberjack://127.0.0.1:5044 celery --app tasks worker --concurrency 3
"""

import logging
import logging.config
import os

from celery import Celery, signals

app = Celery("tasks")
app.config_from_object("celeryconfig")
log = logging.getLogger("shop")


@signals.setup_logging.connect  # otherwise Celery replaces the handlers of the root logger
def configure_logging(**_):
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


@app.task
def price(number):
    log.info("order %s received", number)
    log.info("order %s priced", number)
    log.info("order %s answered", number)
    return {"order": number, "worker": os.getpid()}
