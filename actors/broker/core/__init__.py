"""What every broker has: the loop, sending, reading, groups, tables, and the hooks for features."""
