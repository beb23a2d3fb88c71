"""Read a topic with Spark's Structured Streaming.

Spark 3.5 does not support streaming sources written in Python. Instead, a planner in the driver writes the
offset ranges of each batch to a manifest file. Spark's file source reads one manifest per batch, and the
executors read the messages of its ranges. The manifests are stored in the checkpoint of the query, and Spark
logs which file it has read in which batch. Therefore a restarted query reads exactly the same ranges again.
"""
