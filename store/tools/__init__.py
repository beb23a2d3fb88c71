"""Offline tools for a store: info, dump, query, verify and rebuild. They need no broker."""
