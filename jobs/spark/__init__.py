"""Read, stream and write queues with Spark, and start its sessions."""
