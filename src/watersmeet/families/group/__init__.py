"""GROUP BY as a table."""
