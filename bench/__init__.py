"""Benchmarks: `python -m bench [ROW…]`. See README.md here for what is compared and how."""
