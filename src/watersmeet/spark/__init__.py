"""How a plan runs on Spark: exchange, state, sources, sinks."""
