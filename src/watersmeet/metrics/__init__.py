"""Progress, history, logs and metrics of queries, from what Spark and the operators report."""
