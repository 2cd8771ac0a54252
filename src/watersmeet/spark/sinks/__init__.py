"""How rows go out."""
