"""The window join: rows meet what is in the window of the other side."""
