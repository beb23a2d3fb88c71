"""A Spark driver that reads a topic on RayDP executors, which each take a part of a Ray resource.

python -m tests.cluster.raydp_reader RAY NAMESERVERS TOPIC EXECUTORS RESOURCE=AMOUNT
"""

from __future__ import annotations

import sys

from jobs import raydp_session, read_queue

EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."


def main(address: str, nameservers: str, topic: str, executors: str, resource: str) -> None:
    """Read the topic and print the number of its messages."""
    import ray

    ray.init(address)
    name, _, amount = resource.partition("=")
    settings = {
        EXECUTOR_RESOURCE + name: amount,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        # On a slow machine a Python worker starts in more than the 3 s after which Spark gives up a node.
        "spark.locality.wait": "60s",
    }
    with raydp_session("reader", int(executors), 1, "512m", settings) as spark:
        frame = read_queue(spark, topic, nameservers=nameservers, columns=["body"], minPartitions=6)
        sys.stdout.write(f"{frame.distinct().count()} messages\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
