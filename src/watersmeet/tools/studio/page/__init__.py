"""The page: what the queries of a project do and did, in a browser."""
