"""Integrations with web frameworks and with other libraries for logging, one module each.

`django`, `flask`, `starlette`, `aiohttp` and `celery` give every event the fields of its request or task;
`wsgi` and `asgi` send a document for each request to Logjam.
"""
