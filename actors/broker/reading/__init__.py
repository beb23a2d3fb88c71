"""Reading: pulls, those that wait for messages, reads that wait for the disk, and questions about queues."""
