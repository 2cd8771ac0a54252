"""The way of rows through a stateful stage."""
