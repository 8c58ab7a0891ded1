"""Where logclient meets frameworks. None of them is imported here."""
