"""Histories of sends, reads and commits, and checks for lost, duplicate and reordered messages."""
