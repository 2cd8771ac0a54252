"""What became of each row of a query: rows that arrived, marks that moved, rows that met, how each life ended."""

from watersmeet.fates.model import Arrival, Fate, Mark, Meeting, Miss, Shown, Told, What
from watersmeet.fates.telling import Batch, told

__all__ = ["Arrival", "Batch", "Fate", "Mark", "Meeting", "Miss", "Shown", "Told", "What", "told"]
