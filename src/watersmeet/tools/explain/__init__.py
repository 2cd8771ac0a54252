"""Explains a query as text, JSON and a drawing."""
