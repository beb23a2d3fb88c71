"""Reading a store: messages by queue offset, by key and by time, as records or as Arrow columns."""
