"""Pumps, which move bytes between a codec and a connection without the GIL."""
