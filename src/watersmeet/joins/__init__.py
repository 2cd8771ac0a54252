"""What a join means: numpy and Arrow only, no Spark and no SQL. Read `interval.definition` first."""
