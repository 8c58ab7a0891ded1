"""The nemesis: producers and collectors under seeded schedules of faults, judged by the Spark verifier.

`schedule` makes a plan from a seed, `scene` carries it out with real processes (`producer`, ``logclient
collect``, `relay`), `judge` decides what was violated, `batch` runs many seeds, `shrink` reduces a schedule
that fails. ``python -m tests.nemesis`` is the command line; docs/nemesis.md says how to read its output.
"""
