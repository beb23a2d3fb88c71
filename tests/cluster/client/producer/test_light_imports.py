"""A producer needs neither Ray nor Spark, and compiled kernels and Arrow only for batches and tables."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster.client.conftest import Cluster

PROGRAM = """
import sys

BLOCKED = {"ray", "raydp", "pyspark", "numba", "llvmlite", "pyarrow"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

from cluster.client import Message, Producer

with Producer(sys.argv[1]) as producer:
    print(repr(producer.send(Message(sys.argv[2], b"body")).status))
"""


def test_producer_starts_and_sends_without_ray_spark_numba_and_arrow(cluster: Cluster) -> None:
    topic = cluster.topic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.address, topic],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "SEND_OK" in done.stdout, done.stderr
