"""Keeps the log that consumer groups have not read yet."""
