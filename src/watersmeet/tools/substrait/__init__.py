"""Reads Substrait plans into scripts."""
