"""Reading a store: messages of a queue, by key and by time, as records or Arrow columns."""
