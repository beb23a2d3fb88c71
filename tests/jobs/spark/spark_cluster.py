"""A standalone Spark cluster whose executors are separate processes, which tests can kill.

Each worker has its own address in the loopback network, because Spark runs the speculative copy of a task
only on another host than the first attempt.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pyspark

from jobs.spark.session import prepare_environment
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
EXECUTOR_MEMORY = "512m"


class SparkCluster:
    """A master and two workers; an application gets one executor with one core on each."""

    def __init__(self, root: Path) -> None:
        prepare_environment()
        self._root = root
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        eventually(lambda: _is_open(port), "Spark's master")
        for host in WORKER_HOSTS:
            self._start(
                "worker.Worker", "--host", host, "--cores", "1", "--memory", EXECUTOR_MEMORY,
                "--webui-port", "0", "--work-dir", str(root / host), self.master,
            )  # fmt: skip

    def stop(self) -> None:
        """Stop the workers, which stop their executors, and the master."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(LIMIT_S)

    def _start(self, name: str, *arguments: str) -> None:
        spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        environment = {**os.environ, "SPARK_DAEMON_MEMORY": "256m"}
        with (self._root / f"{name}-{len(self._processes)}.log").open("wb") as log:
            command = [str(spark_class), f"org.apache.spark.deploy.{name}", *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(process)


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
