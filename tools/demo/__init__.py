"""The demo: ship log lines over each protocol, and check the verdicts of the verifier.

docs/commands.md describes its runs. A further protocol is a row in `scenarios.PROTOCOLS`.
"""
