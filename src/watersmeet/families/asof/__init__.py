"""The as-of join: each row with the version that is in force at its time."""
