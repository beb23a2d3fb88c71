"""Commands on consumer groups: group, offset, dlq."""
