"""Queries from start to end."""
