"""Kafka: runs one broker of Apache Kafka in KRaft mode on free loopback ports.

<root>/server.properties, data/, logs/, *.log
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

from tests.compat.build import jars_of, java_program
from tests.compat.peers import Started
from tests.compat.processes import Program
from tests.eventually import LIMIT_S
from tests.ports import free_port

POM = Path(__file__).with_name("kafka_pom.xml")
KAFKA, SPARK_KAFKA, ICEBERG = "kafka", "spark-kafka", "iceberg"
HEAP = ("-Xms1g", "-Xmx1g")


def kafka_jars(profile: str) -> Path:
    """Return the folder with the jars of a profile; download them once.

    Raises:
        JavaNotFound: There is no Maven, and the jars are not cached.
        BuildFailed: Maven failed.
    """
    return jars_of(POM, (KAFKA, SPARK_KAFKA, ICEBERG)) / profile


class Kafka(Started):
    """One Kafka broker, with its default settings except for addresses and the store time of messages."""

    def __init__(self, root: Path, partitions: int) -> None:
        """Choose the ports; nothing is started. `create_topic` creates `partitions` partitions."""
        self._root = root
        self._port, self._controller_port = free_port(), free_port()
        self._partitions = partitions
        self._class_path = f"{kafka_jars(KAFKA)}/*"
        self._server: Program | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker, host:port."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Format the log directory and start the broker. Raises ProgramFailed, CalledProcessError."""
        self._root.mkdir(parents=True, exist_ok=True)
        conf = self._root / "server.properties"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(conf))
        log = self._root / "server.log"
        self._server = Program(self._command("kafka.Kafka", str(conf), jvm=HEAP), log, cwd=self._root)
        self._server.wait_for("Kafka Server started", LIMIT_S)
        return self

    def create_topic(self, topic: str) -> None:
        """Create a topic. Raises CalledProcessError."""
        arguments = ["--create", "--topic", topic, "--partitions", str(self._partitions)]
        self._run(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.bootstrap_servers, *arguments
        )

    def stop(self) -> None:
        """Stop the broker."""
        if self._server is not None:
            self._server.terminate()

    def _run(self, main_class: str, *arguments: str) -> None:
        command = self._command(main_class, *arguments)
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)

    def _settings(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._root / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # The store time, as that of RayMQ's messages, for the latency of a stream.
            "log.message.timestamp.type": "LogAppendTime",
        }

    def _command(self, main_class: str, *arguments: str, jvm: tuple[str, ...] = ()) -> list[str]:
        log4j = self._root / "log4j.properties"
        log4j.write_text(
            "log4j.rootLogger=INFO, out\n"
            "log4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )
        options = (f"-Dlog4j.configuration=file:{log4j}", f"-Dkafka.logs.dir={self._root / 'logs'}", *jvm)
        return [str(java_program("java")), *options, "-cp", self._class_path, main_class, *arguments]
