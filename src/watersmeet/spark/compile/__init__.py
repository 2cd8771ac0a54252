"""From a plan to DataFrames."""
