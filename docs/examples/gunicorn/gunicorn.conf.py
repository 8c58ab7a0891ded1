"""See docs/fork-and-exit.md. What gunicorn does by default is right for the log records, too."""

bind = "127.0.0.1:8000"
workers = 3

# The master loads the application once and forks. What it logged while loading is the master's to
# deliver; each worker begins with an empty queue, an identity and a connection of its own.
preload_app = True

# Workers end like any Python process (SIGTERM, HUP, max_requests): the request at hand is answered, then
# the last records are delivered, for 2 s at most (the option atexit_timeout). Both must fit in here, or
# the master kills the worker.
graceful_timeout = 30

# A worker that hangs gets SIGABRT after so long, and SIGKILL a second later: keep atexit_timeout below a
# second if the last words of such a worker matter.
timeout = 30
