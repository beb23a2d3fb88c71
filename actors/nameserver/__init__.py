"""The nameserver: which brokers there are, and which topics they have."""
