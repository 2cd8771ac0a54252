"""What every join family is built from: its contract, watermarks, conditions, matching."""
