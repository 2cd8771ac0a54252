"""States that are made anew: the past of a query goes once more through the query as it is now.

The batches that the old query had, as far back as lives reach, are replayed into a checkpoint beside the old one, and
what comes out is thrown away. Then that checkpoint gets the number of the last batch, the offsets and the files that
were read, and takes the place of the old one: the next batch is the one that would have come next.
"""
