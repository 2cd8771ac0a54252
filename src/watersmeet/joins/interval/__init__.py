"""The interval join."""
