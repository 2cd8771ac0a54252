"""Connectors: how each format is read and written on Spark."""
