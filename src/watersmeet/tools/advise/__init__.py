"""Advice on a join from its rows: which bound, which lag, which key. NumPy and Arrow, without Spark."""
