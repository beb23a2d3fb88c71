"""Which broker a store belongs to, and which process writes it."""
