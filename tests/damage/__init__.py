"""Damaged evidence: ledgers and captures with realistic damage, and two oracles for each verdict.

``runs.py`` makes an honest or lying run from a seed, with files of the product's own writers, and knows the
truth. ``damages.py`` damages the files, ``rules.py`` reads the result by the rules of docs/verify-rules.md.
``cases.py`` combines them; ``python -m tests.damage`` judges thousands in one Spark query per protocol.
"""
