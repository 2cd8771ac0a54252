"""The latest row per key: a stream, or upserts, as a table."""
