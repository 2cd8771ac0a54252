"""The drawing board: a page on which a query is played with, without Spark."""
