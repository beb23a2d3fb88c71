"""POP: consumers claim messages for a time, ack them one by one, and need no queue of their own."""
