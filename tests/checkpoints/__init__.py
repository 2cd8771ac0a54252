"""Kept checkpoints of every family, one archive per format of the state."""
