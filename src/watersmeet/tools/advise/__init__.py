"""What the rows themselves say about a join: which bound, which lag, which key. NumPy and Arrow, no Spark."""
