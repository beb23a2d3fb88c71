"""Appending to a store."""
