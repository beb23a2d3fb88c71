"""Read queues: splits, options, schema, committed ranges and the reader, without Spark or Ray Data."""
