"""Handlers of administrative requests: topics, groups, offsets, clients, cleaning and statistics."""
