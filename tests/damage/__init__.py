"""Damaged evidence: ledgers and captures torn as the field tears them, and two oracles for each verdict.

``runs.py`` makes an honest or lying run from a seed, with files that the product's own writers wrote, and
knows what really happened. ``damages.py`` tears them, ``rules.py`` reads what is left as docs/verify.md says.
``cases.py`` puts them together; ``python -m tests.damage`` judges thousands in one Spark query per protocol.
"""
