"""A fleet that lives, and the verdicts on its intervals while it does: ``python -m tests.fleet``."""
