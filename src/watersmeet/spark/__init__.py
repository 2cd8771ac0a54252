"""Queries on Spark: connectors, frames, the exchange, runs, states. Only this package imports pyspark."""
