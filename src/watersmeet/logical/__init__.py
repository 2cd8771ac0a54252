"""Logical plans: parsed and analyzed relations, expressions and queries as values, and the passes over them."""
