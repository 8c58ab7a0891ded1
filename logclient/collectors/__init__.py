"""The common part of the collectors: servers for tests and demos that capture everything they receive."""
