"""The as-of join."""
