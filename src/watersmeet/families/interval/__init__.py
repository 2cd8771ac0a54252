"""The interval join: rows meet within bounds of event time."""
