"""Consume queues: the files of one queue, their check at startup, and the table of all queues of a store."""
