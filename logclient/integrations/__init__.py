"""Integrations with web frameworks, one module each. No framework is imported."""
