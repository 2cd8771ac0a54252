"""``make faults``: queries that are killed and hindered again and again, and the rows that came out in spite of it."""
