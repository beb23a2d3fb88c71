"""Appending records to a store."""
