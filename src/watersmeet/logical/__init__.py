"""What was asked, and what is known of it: immutable values without any behaviour of their own."""
