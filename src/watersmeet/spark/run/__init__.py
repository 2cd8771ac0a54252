"""Starts, watches, restarts and rebuilds queries."""
