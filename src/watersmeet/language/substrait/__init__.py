"""Substrait plans."""
