"""Tools of the repository; they are not installed."""
