"""A Flask application whose log records are shipped. Run it under gunicorn::

LOG_URL=lumberjack://127.0.0.1:5044 gunicorn --config gunicorn.conf.py app:app
"""

import logging
import logging.config
import os

from flask import Flask

# Plain values only. Nothing is connected and no thread is started here: the first record does that, in
# whatever process logs it. So it does not matter whether the master loads this file (preload_app) or
# each worker does. A ledger is an option of the URL: ...:5044?ledger=/var/lib/shop/ledger
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
app = Flask(__name__)
log.info("application loaded")


@app.get("/order/<number>")
def order(number: str) -> dict[str, object]:
    log.info("order %s received", number)
    log.info("order %s priced", number)
    log.info("order %s answered", number)
    return {"order": number, "worker": os.getpid()}
