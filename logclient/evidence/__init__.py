"""Evidence: the ledgers and captures in folders and buckets, read without Spark. See ``docs/formats.md``."""
