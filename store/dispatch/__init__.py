"""The one dispatch (design law 3): the walk over the log, units for consume queues, keys for the index."""
