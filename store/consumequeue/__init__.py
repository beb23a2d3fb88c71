"""The consume queues: one queue's files, the check of them at the start, and the table of all queues."""
