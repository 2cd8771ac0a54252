"""The sync join."""
