"""The spool: files in which the events of a client outlive its process (docs/spool.md)."""
