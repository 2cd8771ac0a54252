"""From tokens to a plan."""
