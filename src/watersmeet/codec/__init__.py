"""Avro: schemas, and values read and written a column at a time."""
