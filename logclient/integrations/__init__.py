"""Integrations with web frameworks and with other libraries for logging, one module each."""
