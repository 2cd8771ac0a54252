"""What became of each row of a query: rows that arrived, marks that moved, rows that met, how each life ended."""

from watersmeet.fates.model import Arrival, Fate, Mark, Meeting, Shown, Told, What

__all__ = ["Arrival", "Fate", "Mark", "Meeting", "Shown", "Told", "What"]
