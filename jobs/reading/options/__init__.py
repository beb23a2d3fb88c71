"""The options of a read: one frozen object, parsed from the arguments of `read_queue` and its relatives."""
