"""Pumps: what moves bytes between a codec and a connection without the GIL."""
