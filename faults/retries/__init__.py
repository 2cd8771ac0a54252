"""Tasks that fail, are slow or lose their executor at every point of a batch, on two executors, for every family."""
