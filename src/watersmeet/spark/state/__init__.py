"""States of queries, looked at and changed from outside, while nothing runs on them."""
