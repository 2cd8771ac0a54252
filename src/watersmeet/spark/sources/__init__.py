"""How rows come in."""
