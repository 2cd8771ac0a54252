"""The join of two tables."""
