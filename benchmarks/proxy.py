"""RocketMQ with its proxy, and RayMQ with a gateway but without Ray: what gRPC clients connect to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cluster.client import Admin
from tests.compat.build import JavaKit, jars_of, java_program
from tests.compat.peers import Deployment
from tests.compat.processes import Program
from tests.compat.raymq import REPO, RayMQ
from tests.compat.rocketmq import BROKER_NAME, CLUSTER_NAME, STORE_JVM, RocketMQ
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

POM = Path(__file__).with_name("proxy_pom.xml")
PROXY = "proxy-5.3.3"
SDK = "sdk-5.0.8"
HEARTBEAT_TOPIC = "DefaultHeartBeatSyncerTopic"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")


def class_path(profile: str) -> str:
    """Return the class path of a profile of `proxy_pom.xml`; download its jars if they are not cached."""
    return f"{jars_of(POM, (PROXY, SDK)) / profile}/*"


class RocketMQWithProxy(Deployment):
    """A nameserver, a broker and a proxy in cluster mode, each in a process of its own."""

    def __init__(self, kit: JavaKit, root: Path, settings: Mapping[str, str] | None = None) -> None:
        """Choose the ports; nothing is started. `settings` are entries of broker.conf."""
        self._root = root
        self._rocketmq = RocketMQ(kit, root, settings)
        self._port = free_port()
        self._proxy: Program | None = None

    @property
    def nameserver_address(self) -> str:
        """Address of the nameserver, host:port."""
        return self._rocketmq.nameserver_address

    @property
    def broker_address(self) -> str:
        """Address of the broker, host:port."""
        return self._rocketmq.broker_address

    @property
    def broker_pid(self) -> int:
        """PID of the broker."""
        return self._rocketmq.broker_pid

    @property
    def gateway_address(self) -> str:
        """Address of the proxy, host:port."""
        return f"127.0.0.1:{self._port}"

    @property
    def gateway_pid(self) -> int:
        """PID of the proxy."""
        assert self._proxy is not None, "the proxy was not started"
        return self._proxy.pid

    def start(self) -> Self:
        """Start the nameserver, the broker and the proxy."""
        self._rocketmq.start()
        self._create_heartbeat_topic()
        home = self._root / "proxy"
        (home / "conf").mkdir(parents=True)
        conf = home / "conf" / "proxy.json"
        settings = {
            "rocketMQClusterName": CLUSTER_NAME, "namesrvAddr": self.nameserver_address,
            "grpcServerPort": self._port, "remotingListenPort": free_port(),
        }  # fmt: skip
        conf.write_text(json.dumps(settings))
        command = [
            str(java_program("java")), f"-Duser.home={home}", *HEAP, *STORE_JVM, "-cp", class_path(PROXY),
            "org.apache.rocketmq.proxy.ProxyStartup",
            "-n", self.nameserver_address, "-pm", "cluster", "-pc", str(conf),
        ]  # fmt: skip
        env = {**os.environ, "ROCKETMQ_HOME": str(home)}
        self._proxy = Program(command, self._root / "proxy.log", env=env)
        self._proxy.wait_for("startup successfully", LIMIT_S)
        return self

    def _create_heartbeat_topic(self) -> None:
        """Create the topic that the proxy needs: it looks for the broker, and then for the topic, once."""
        with Admin(self.nameserver_address) as admin:
            eventually(lambda: BROKER_NAME in admin.cluster_info().brokers, "the registration of the broker")
            admin.create_topic(HEARTBEAT_TOPIC, queues=1)

    def stop(self) -> None:
        """Kill all processes."""
        if self._proxy is not None and self._proxy.is_running:
            self._proxy.kill()
        self._rocketmq.stop()


class RayMQWithGateway(Deployment):
    """The standalone cluster, and a gateway in a process of its own."""

    def __init__(
        self, root: Path, settings: Mapping[str, str] | None = None, *, has_tls: bool = False
    ) -> None:
        """Choose the ports; nothing is started. `settings` are entries of broker.conf."""
        self._root = root
        self._options = ["tls"] if has_tls else []
        self._raymq = RayMQ(root, settings)
        self._port = free_port()
        self._gateway: Program | None = None

    @property
    def nameserver_address(self) -> str:
        """Address of the nameserver, host:port."""
        return self._raymq.nameserver_address

    @property
    def broker_address(self) -> str:
        """Address of the broker, host:port."""
        return self._raymq.broker_address

    @property
    def broker_pid(self) -> int:
        """PID of the process of nameserver, rebalancer and broker."""
        return self._raymq.broker_pid

    @property
    def gateway_address(self) -> str:
        """Address of the gateway, host:port."""
        return f"127.0.0.1:{self._port}"

    @property
    def gateway_pid(self) -> int:
        """PID of the gateway."""
        assert self._gateway is not None, "the gateway was not started"
        return self._gateway.pid

    def start(self) -> Self:
        """Start the cluster and the gateway."""
        self._raymq.start()
        module = "tests.faults.gateway_process"
        command = [sys.executable, "-m", module, self.nameserver_address, str(self._port), *self._options]
        self._gateway = Program(command, self._root / "gateway.log", cwd=REPO)
        self._gateway.wait_for(str(self._port), LIMIT_S)
        return self

    def stop(self) -> None:
        """Stop all processes."""
        if self._gateway is not None and self._gateway.is_running:
            self._gateway.terminate()
        self._raymq.stop()
