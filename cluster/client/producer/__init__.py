"""The producer: sends messages, batches of messages and tables of rows."""
