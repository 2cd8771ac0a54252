"""Queries in this process, without Spark: values, expressions and operators over Arrow tables."""
