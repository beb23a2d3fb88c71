"""Ownership of a store: the broker that it belongs to, and the one process that may write to it."""
