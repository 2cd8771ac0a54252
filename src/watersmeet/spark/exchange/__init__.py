"""The exchange: packs rows by shard, and runs the operators of each shard over Spark's state store."""
