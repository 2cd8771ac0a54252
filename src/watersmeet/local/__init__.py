"""Queries in the process, without Spark: values, expressions and joins over Arrow tables."""
