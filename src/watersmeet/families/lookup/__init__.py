"""The lookup join: each row of a stream with what a table has for it at that moment."""
