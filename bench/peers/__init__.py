"""Watersmeet compared with other systems: the same rows, the same results, whole runs from the launch of a process."""
