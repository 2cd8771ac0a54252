"""The logical plan: parsed and analyzed relations as immutable values, and the passes between the two."""
