"""The window join."""
