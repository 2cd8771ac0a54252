"""``make faults``: kill and hinder queries repeatedly, and compare their rows with those of an undisturbed run."""
