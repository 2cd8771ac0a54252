"""Avro: its schemas, and rows from and into its bytes a column at a time."""
