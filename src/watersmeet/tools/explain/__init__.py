"""What a query is and will do, in words and as a drawing."""
