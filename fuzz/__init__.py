"""Fuzzing of the compiled code: ``make fuzz``; docs/fuzzing.md says how."""
