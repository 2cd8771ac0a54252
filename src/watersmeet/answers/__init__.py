"""Why a row did not join: a question about rows of a source, and what became of them."""
