"""Servers for tests and demos that capture what they receive, and what they share."""
