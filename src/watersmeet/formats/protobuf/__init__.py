"""Protobuf: its messages, and rows from and into their bytes a column at a time."""
