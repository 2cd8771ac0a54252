"""Side by side with Spark's own join: the same data and the same query, in one run."""
