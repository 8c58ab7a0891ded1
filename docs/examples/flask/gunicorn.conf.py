"""gunicorn for the application beside it. Threads are fine: each request keeps its own lines."""

bind = "127.0.0.1:8000"
workers = 2
worker_class = "gthread"
threads = 8

# The master loads the application once and forks; each worker gets a connection and an identity of its own.
preload_app = True

# A worker that is told to end answers the requests at hand, then delivers their documents, for 2 s at most
# (the option atexit_timeout). Both must fit in here.
graceful_timeout = 30
