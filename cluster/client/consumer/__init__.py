"""Pull and push consumers: fetching, delivery, listener threads, commits, and responses to admin tools."""
