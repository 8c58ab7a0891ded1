"""The spool: kills, adoption, bounds, trouble, the end of the machine."""
