"""The join of two tables: a table that changes with either."""
