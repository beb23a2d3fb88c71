"""Decodes bodies of messages to typed columns, without Spark."""
