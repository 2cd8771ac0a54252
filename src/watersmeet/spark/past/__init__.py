"""What a query has read: the log of its checkpoint, and the rows of its sources batch by batch."""
