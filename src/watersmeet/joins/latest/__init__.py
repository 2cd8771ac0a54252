"""The latest row per key."""
