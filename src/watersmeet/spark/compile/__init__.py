"""Compiles a physical plan into DataFrames."""
