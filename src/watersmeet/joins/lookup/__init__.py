"""The lookup join."""
