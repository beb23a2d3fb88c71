"""Write rows to queues: jobs, the writer of a partition, and the commit; without Spark or Ray Data."""
