"""RocketMQ: runs Apache RocketMQ's nameserver and one broker on free loopback ports.

<root>/home/        ROCKETMQ_HOME, with an empty conf/
<root>/store/       storePathRootDir
<root>/*.conf, *.log
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.compat.build import ROCKETMQ, JavaKit
from tests.compat.peers import Peer
from tests.compat.processes import Program
from tests.eventually import LIMIT_S
from tests.ports import free_port

# JVM options that the store needs to map and unmap files.
STORE_JVM = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
BROKER_NAME = "broker-a"
CLUSTER_NAME = "DefaultCluster"


class RocketMQ(Peer):
    """A nameserver and a broker; they keep their ports, and the broker its store, across restarts."""

    cluster_name = CLUSTER_NAME
    broker_name = BROKER_NAME

    def __init__(
        self,
        kit: JavaKit,
        root: Path,
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = "1g",
        profile: str = ROCKETMQ,
    ) -> None:
        """Choose the ports; nothing is started.

        `settings` are entries of broker.conf; `heap` is the broker's heap size.
        """
        self._kit = kit
        self._profile = profile
        self.root = root
        self.store_root = root / "store"
        self._heap = heap
        self._settings = dict(settings or {})
        self._nameserver_port = free_port()
        self._broker_port = free_port(-2, 1)
        self.nameserver: Program | None = None
        self.broker: Program | None = None

    @property
    def nameserver_address(self) -> str:
        return f"127.0.0.1:{self._nameserver_port}"

    @property
    def broker_address(self) -> str:
        return f"127.0.0.1:{self._broker_port}"

    @property
    def broker_pid(self) -> int:
        assert self.broker is not None, "the broker was not started"
        return self.broker.pid

    def start(self) -> Self:
        self.start_nameserver()
        self.start_broker()
        return self

    def start_nameserver(self) -> None:
        conf = self._write_conf("namesrv.conf", self.nameserver_conf())
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self.nameserver = self._run(main, conf, "namesrv.log", "-Xms256m", "-Xmx256m")
        self.nameserver.wait_for("boot success", LIMIT_S)

    def nameserver_conf(self) -> dict[str, str]:
        return {"listenPort": str(self._nameserver_port), "bindAddress": "127.0.0.1"}

    def start_broker(self) -> None:
        conf = self._write_conf("broker.conf", self.broker_conf())
        main = "org.apache.rocketmq.broker.BrokerStartup"
        heap = (f"-Xms{self._heap}", f"-Xmx{self._heap}", "-XX:MaxDirectMemorySize=2g")
        self.broker = self._run(main, conf, "broker.log", *heap, *STORE_JVM)
        self.broker.wait_for("boot success", LIMIT_S)

    def broker_conf(self) -> dict[str, str]:
        return {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(self._broker_port),
            "namesrvAddr": self.nameserver_address,
            "storePathRootDir": str(self.store_root),
            "storePathCommitLog": str(self.store_root / "commitlog"),
            "diskMaxUsedSpaceRatio": "95",
            **self._settings,
        }

    def restart_broker(self, *, killed: bool) -> None:
        """Restart the broker on the same store and port; stop it by SIGKILL if `killed`."""
        assert self.broker is not None, "the broker was not started"
        if killed:
            self.broker.kill()
        else:
            self.broker.terminate()
        self.start_broker()

    def kill_broker(self) -> None:
        """Kill the broker (SIGKILL); the nameserver keeps running."""
        assert self.broker is not None, "the broker was not started"
        self.broker.kill()

    def stop_cleanly(self) -> None:
        """Shut down the broker, which closes its store and saves its tables, then the nameserver."""
        assert self.broker is not None, "the broker was not started"
        self.broker.terminate()
        self.stop()

    def stop(self) -> None:
        """Kill both: a clean shutdown of the broker takes 10 s, and its store is not opened again."""
        for program in (self.broker, self.nameserver):
            if program is not None and program.is_running:
                program.kill()

    def _run(self, main: str, conf: Path, log: str, *jvm: str) -> Program:
        home = self.root / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        command = self._kit.command(main, "-c", str(conf), home=home, profile=self._profile, jvm=jvm)
        return Program(command, self.root / log, env={**os.environ, "ROCKETMQ_HOME": str(home)})

    def _write_conf(self, name: str, settings: Mapping[str, str]) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path
