"""How `fmt` lays a script out."""
