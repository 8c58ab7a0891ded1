"""Delivery over slow, lossy and broken networks: ``python -m tests.networks`` prints a table of all cases.

`tests.support.networks` has the emulated link. A case is a client's program, servers, and what happens to the
link between them; what must hold for it is part of it.
"""
