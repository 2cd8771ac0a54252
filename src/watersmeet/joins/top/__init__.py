"""ORDER BY ... LIMIT n: a table of the first n rows."""
