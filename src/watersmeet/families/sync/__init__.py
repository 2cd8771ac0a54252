"""The sync join: rows meet that have the same time."""
