"""Read a topic with Spark's Structured Streaming.

Spark 3.5 has no streaming sources in Python. So a planner in the driver writes the offset ranges of each
batch to a manifest file, Spark's file source reads one manifest per batch, and the executors read the
messages of the ranges. The manifests are in the checkpoint of the query: Spark's log of files that it has
read is then a log of offset ranges, and a restarted query reads exactly the same ranges again.
"""
