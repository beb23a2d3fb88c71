"""Consume queues: the files of a queue, their check when a store opens, and the table of all queues."""
