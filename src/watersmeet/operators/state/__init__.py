"""The state of a shard."""
