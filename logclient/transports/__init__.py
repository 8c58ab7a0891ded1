"""Sockets: they move bytes and know no protocol."""
