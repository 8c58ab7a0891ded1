"""Integrations with web frameworks and with other libraries for logging, one module each.

`django`, `flask`, `starlette`, `aiohttp` and `celery` give every event the fields of its request or task
(`request_fields`), whatever the server. `wsgi` and `asgi` are something else: they send a document for each
request to Logjam (`http`). `loguru` and `structlog` ship what these libraries log, and `prometheus` counts.
"""
