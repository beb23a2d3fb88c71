"""Decode the bodies of messages into typed columns, for reads with a schema."""
